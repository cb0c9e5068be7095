// Operands and comparisons for the check of a GEMM epilogue.
#include "cuda/gemm/check.h"
#include "cuda/gemm/check_epilogue.h"
#include "cuda/gemm/device.cuh"

namespace mezzo::cuda {
namespace {

using Shows = EpilogueTrial::Shows;

// The arguments are products of a row's and a column's factor, which have at most 7 bits, so that they are
// exact in every dtype and as TF32; 4 bits for float8.
__device__ double row_factor(const EpilogueTrial& t, std::int64_t i) {
    return t.is_float8 ? double(i % 32 - 16) / 16 : double(i % 128 - 64) / 64;
}
__device__ double column_factor(const EpilogueTrial& t, std::int64_t j) {
    const int at = int(j % 64);
    if (at < 48) return t.is_float8 ? (at % 12 + 1) / 2.0 : (at + 1) / 8.0;
    return (at % 2 == 0 ? 1.0 : 1.5) / double(2 << (at - 48) / 2 % 6);
}

__device__ bool is_nan_row(const EpilogueTrial& t, std::int64_t i) {
    return t.activation == Activation::relu && i % 16 == 9;
}

// Element l of row i of A. The terms of a sum are spread over all of k.
__device__ double a_of(const EpilogueTrial& t, std::int64_t i, std::int64_t l) {
    if (t.shows == Shows::activation) return l < t.k - 1 ? 0 : t.is_gradient ? 1 : row_factor(t, i);
    if (l == t.k - 1 && is_nan_row(t, i)) return NAN;
    return double((l + 1) * t.sum / t.k - l * t.sum / t.k);
}
// Any element of column j of B, times the factors.
__device__ double b_of(const EpilogueTrial& t, std::int64_t j) {
    if (t.shows == Shows::rounding) return j % 2 == 0 ? 1 : -1;
    return t.is_gradient ? 1 : column_factor(t, j);
}
__device__ double bias_of(const EpilogueTrial& t, std::int64_t i) {
    if (!t.has_bias) return 0;
    return t.shows == Shows::rounding ? double(1 + 4 * (i % 8)) : double(i / 8 % 3 - 1) / 4;
}

__global__ void fill_kernel(EpilogueTrial t) {
    // The product of the factors is not 1, so that a library which multiplies a bias by it is noticed. The
    // elements of B are divided by it, and the arguments stay those of other dtypes.
    const double factor = t.is_float8 ? first_a_scale * first_b_scale : 1;
    const std::int64_t a = t.m * t.k, b = t.n * t.k, d = t.m * t.n;
    for (std::int64_t item = first_item(); item < a + b + t.m + d; item += item_step()) {
        std::int64_t at = item;
        if (at < a) {
            const std::int64_t i = at % t.m, l = at / t.m;
            store_as<double, Dtypes::all>(t.a, t.type, t.trans_a ? i * t.lda + l : l * t.lda + i,
                                          a_of(t, i, l));
        } else if ((at -= a) < b) {
            const std::int64_t j = at % t.n, l = at / t.n;
            store_as<double, Dtypes::all>(t.b, t.type, t.trans_b ? l * t.ldb + j : j * t.ldb + l,
                                          b_of(t, j) / factor);
        } else if ((at -= b) < t.m) {
            store(t.bias, t.d_type, at, bias_of(t, at));
        } else {
            at -= t.m;
            const std::int64_t i = at % t.m, j = at / t.m, to = j * t.ldd + i;
            store(t.d, t.d_type, to, double(NAN));
            if (t.keeps) store(t.aux, t.d_type, to, double(NAN));
            if (t.is_gradient) store(t.aux, t.d_type, to, row_factor(t, i) * column_factor(t, j));
        }
    }
}

__device__ double slope(double x) {
    const double c = 0.79788456080286535588, t = std::tanh(c * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x);
}

// Argument of the activation for element (i, j).
__device__ double argument(const EpilogueTrial& t, std::int64_t i, std::int64_t j) {
    if (t.is_gradient) return load<double>(t.aux, t.d_type, j * t.ldd + i);
    if (t.shows == Shows::activation) return row_factor(t, i) * column_factor(t, j) + bias_of(t, i);
    return is_nan_row(t, i) ? NAN : double(t.sum) * b_of(t, j) + bias_of(t, i);
}

__device__ bool is_close(double actual, double expected, double allowed) {
    return std::isnan(expected) ? std::isnan(actual) : std::abs(actual - expected) <= allowed;
}

__global__ void wrong_kernel(EpilogueTrial t, unsigned long long* count) {
    const bool exact = t.shows == Shows::rounding;
    const double twice = 2 * t.accuracy.roundoff, loss = t.accuracy.activation;
    unsigned long long wrong = 0;
    for (std::int64_t item = first_item(); item < t.m * t.n; item += item_step()) {
        const std::int64_t i = item % t.m, j = item / t.m, at = j * t.ldd + i;
        const double x = argument(t, i, j), size = std::abs(x);
        const double y = t.is_gradient ? slope(x) : activate(t.activation, x);
        // a library may round the argument of an activation, as training does, which keeps it
        const double allowed = t.is_gradient
                                   ? twice * std::abs(y) + 4 * loss
                                   : twice * (std::abs(y) + size * std::abs(slope(x))) + loss * size;
        wrong += !is_close(load<double>(t.d, t.d_type, at), y, exact ? 0 : allowed);
        if (t.keeps) wrong += !is_close(load<double>(t.aux, t.d_type, at), x, exact ? 0 : twice * size);
    }
    wrong = block_reduce(wrong, 0ull, Sum());
    if (threadIdx.x == 0 && wrong != 0) atomicAdd(count, wrong);
}

}  // namespace

void fill_trial(const EpilogueTrial& t) {
    launch(fill_kernel, grid_for(t.m * t.k + t.n * t.k + t.m + t.m * t.n), 256, 0, t);
}

void add_wrong_results(const EpilogueTrial& t, unsigned long long* count) {
    launch(wrong_kernel, grid_for(t.m * t.n), 256, 0, t, count);
}

}  // namespace mezzo::cuda
