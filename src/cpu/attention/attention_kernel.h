// The kernels of attention, one source for all instruction sets. The including file defines the macros that
// gemm/pack.h and gemm/micro_kernel.h require, and uses `attention_kernels`. Everything has internal linkage;
// vector.h says why.
#pragma once

#define MEZZO_DEPTH 1
#include "cpu/attention/attention_tables.h"
#include "cpu/gemm/micro_kernel.h"
#include "cpu/gemm/pack.h"

namespace mezzo::cpu {
namespace {

using Bits = UintN<lanes>;

// The larger of both; b if one is NaN.
MEZZO_INLINE Vector larger(const Vector& a, const Vector& b) {
#if defined(__AVX512F__)
    if constexpr (lanes == 16) return (Vector)_mm512_maskz_max_ps(0xffff, (__m512)a, (__m512)b);
#elif defined(__AVX2__)
    if constexpr (lanes == 8) return (Vector)_mm256_max_ps((__m256)a, (__m256)b);
#endif
    return select<lanes>(a > b, a, b);
}

// min(x, 0); NaN stays NaN.
MEZZO_INLINE Vector at_most_zero(const Vector& x) {
#if defined(__AVX512F__)
    if constexpr (lanes == 16) return (Vector)_mm512_maskz_min_ps(0xffff, _mm512_setzero_ps(), (__m512)x);
#elif defined(__AVX2__)
    if constexpr (lanes == 8) return (Vector)_mm256_min_ps(_mm256_setzero_ps(), (__m256)x);
#endif
    return select<lanes>(x > 0.0f, Vector{}, x);
}

// 2^x within 1 ulp for x in [-126, 127], below that 0; NaN stays NaN. 2^r on [-1/2, 1/2] is the polynomial of
// least relative error (2e-9) with a constant term of 1.
MEZZO_INLINE Vector power_of_two(const Vector& x) {
    const float magic = 12582912.0f + 127.0f;  // adding 1.5 * 2^23 rounds to an integer, in the low bits
    const Vector shifted = x + magic;
    const Vector scale = (Vector)((Bits)shifted << 23);
    const Vector r = x - (shifted - magic);
    Vector p = r * 1.535336e-4f + 1.3398875e-3f;
    p = p * r + 9.618437e-3f;
    p = p * r + 5.5503324e-2f;
    p = p * r + 2.4022648e-1f;
    p = p * r + 6.931472e-1f;
    p = p * r + 1.0f;
    return select<lanes>(x < -126.0f, Vector{}, p * scale);
}

// Here and in exponentials() four rows are independent chains, so that no instruction waits for the one
// before.
MEZZO_INLINE Vector column_maximum(const float* t, std::int64_t ld, std::int64_t rows) {
    Vector top[4];
#pragma GCC unroll 4
    for (Vector& v : top) v = Vector{} - __builtin_inff();
    std::int64_t i = 0;
    for (; i + 4 <= rows; i += 4)
#pragma GCC unroll 4
        for (int k = 0; k < 4; ++k) top[k] = larger(load<lanes>(t + (i + k) * ld), top[k]);
    for (; i < rows; ++i) top[0] = larger(load<lanes>(t + i * ld), top[0]);
    return larger(larger(top[0], top[1]), larger(top[2], top[3]));
}

MEZZO_INLINE Vector exponentials(float* t, std::int64_t ld, std::int64_t rows, float scale,
                                 const Vector& shift) {
    Vector sum[4] = {};
    std::int64_t i = 0;
    for (; i + 4 <= rows; i += 4)
#pragma GCC unroll 4
        for (int k = 0; k < 4; ++k) {
            float* const at = t + (i + k) * ld;
            const Vector p = power_of_two((load<lanes>(at) - shift) * scale);
            store<lanes>(at, p);
            sum[k] += p;
        }
    for (; i < rows; ++i) {
        const Vector p = power_of_two((load<lanes>(t + i * ld) - shift) * scale);
        store<lanes>(t + i * ld, p);
        sum[0] += p;
    }
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

template <int = 0> void softmax(const SoftmaxBlock& b) {
    for (std::int64_t j = 0; j < b.columns; j += lanes) {
        const Vector old = load<lanes>(b.maximum + j);
        const Vector top = larger(column_maximum(b.t + j, b.ld, b.rows), old);
        // A query whose keys so far are all hidden has scores and a maximum of -inf; shifted by 0 they stay
        // -inf, shifted by the maximum they would become NaN.
        const Vector shift = select<lanes>(top == -__builtin_inff(), Vector{}, top);
        const Vector sum = exponentials(b.t + j, b.ld, b.rows, b.scale, shift);
        const Vector shrink = power_of_two((old - shift) * b.scale);
        store<lanes>(b.maximum + j, top);
        store<lanes>(b.total + j, load<lanes>(b.total + j) * shrink + sum);
        if (!b.sums) continue;
        for (std::int64_t d = 0; d < b.dim; ++d) {
            float* const at = b.sums + d * b.ld + j;
            store<lanes>(at, load<lanes>(at) * shrink);
        }
    }
}

// p = e^(scale (score - max)) / sum, ds = p (dp - delta). The exponent is at most 0: scores that are rounded
// differently than in the forward pass cannot raise a weight above 1.
template <int = 0> void softmax_grad(const SoftmaxGradBlock& b) {
    for (std::int64_t i = 0; i < b.rows; ++i) {
        const Vector maximum = broadcast<lanes>(b.maximum[i]), log2_sum = broadcast<lanes>(b.log2_sum[i]),
                     delta = broadcast<lanes>(b.delta[i]);
        for (std::int64_t j = 0; j < b.columns; j += lanes) {
            float *const t = b.t + i * b.ld + j, *const u = b.u + i * b.ld + j;
            const Vector p = power_of_two(at_most_zero((load<lanes>(t) - maximum) * b.scale - log2_sum));
            store<lanes>(t, p);
            store<lanes>(u, p * (load<lanes>(u) * b.kept_scale - delta));
        }
    }
}

template <int = 0> void keep(float* t, const std::uint8_t* keep, std::int64_t n, float otherwise) {
    for (std::int64_t i = 0; i < n; ++i) t[i] = keep[i] ? t[i] : otherwise;
}

template <int = 0> void divide(float* sums, std::int64_t ld, std::int64_t dim, std::int64_t columns,
                               const float* total, float factor) {
    for (std::int64_t j = 0; j < columns; j += lanes) {
        const Vector sum = load<lanes>(total + j);
        const Vector scale = select<lanes>(sum == 0.0f, Vector{}, factor / sum);
        for (std::int64_t d = 0; d < dim; ++d) {
            float* const at = sums + d * ld + j;
            store<lanes>(at, load<lanes>(at) * scale);
        }
    }
}

// A vector of the sums of the lanes of each of four vectors.
template <int N> MEZZO_INLINE FloatN<4> four_sums(const FloatN<N> (&x)[4]) {
    if constexpr (N > 4) {
        constexpr int half = N / 2;
        FloatN<half> folded[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            FloatN<half> parts[2];
            __builtin_memcpy(parts, &x[i], sizeof parts);
            folded[i] = parts[0] + parts[1];
        }
        return four_sums<half>(folded);
    } else {
        const FloatN<4> a =
            __builtin_shufflevector(x[0], x[1], 0, 4, 1, 5) + __builtin_shufflevector(x[0], x[1], 2, 6, 3, 7);
        const FloatN<4> b =
            __builtin_shufflevector(x[2], x[3], 0, 4, 1, 5) + __builtin_shufflevector(x[2], x[3], 2, 6, 3, 7);
        return __builtin_shufflevector(a, b, 0, 1, 4, 5) + __builtin_shufflevector(a, b, 2, 3, 6, 7);
    }
}

template <class X, class Y> void dots_of_rows(const X* x, std::int64_t ldx, const Y* y, std::int64_t ldy,
                                              std::int64_t rows, std::int64_t n, float* dst) {
    for (std::int64_t i = 0; i < rows; i += 4) {
        Vector sum[4] = {};
#pragma GCC unroll 4
        for (int r = 0; r < 4; ++r) {
            const std::int64_t row = smaller(i + r, rows - 1);
            const X* const from_x = x + row * ldx;
            const Y* const from_y = y + row * ldy;
            std::int64_t k = 0;
            for (; k + lanes <= n; k += lanes) sum[r] += load<lanes>(from_x + k) * load<lanes>(from_y + k);
            if (k < n) sum[r] += load_first<lanes>(from_x + k, n - k) * load_first<lanes>(from_y + k, n - k);
        }
        const FloatN<4> sums = four_sums<lanes>(sum);
        store_first<4>(dst + i, sums, smaller(4, rows - i));
    }
}

template <int = 0>
void row_dots(const Operand& x, const Operand& y, std::int64_t rows, std::int64_t n, float* dst) {
    with_type(x.type, x.data, [&](const auto* from_x) {
        with_type(y.type, y.data,
                  [&](const auto* from_y) { dots_of_rows(from_x, x.ld, from_y, y.ld, rows, n, dst); });
    });
}

// GEMM's products, which the table leaves out, unless GEMM's register tile is too wide.
template <int N> constexpr GemmKernels own_products() {
    if constexpr (N == 16)
        return {mr, nr, depth, 0, 0, 0, pack<mr>, pack<nr>, tile<>, nullptr, nullptr, nullptr, lanes};
    else
        return {};
}

constexpr AttentionKernels attention_kernels = {
    own_products<lanes>(), softmax<>, softmax_grad<>, keep<>, divide<>, row_dots<>};

}  // namespace
}  // namespace mezzo::cpu
