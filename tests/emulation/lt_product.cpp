// Products of the stand-in for cuBLASLt, on the CPU. fake_lt makes them wrong in ways that are known of the
// library.
#include <bit>
#include <cmath>

#include "core/visit_dtype.h"
#include "tests/emulation/fake_lt.h"
#include "tests/emulation/lt_device.h"

namespace mezzo::emulation {
namespace {

using namespace cuda::lt;

// Type through which elements of type T are converted from and to double.
template <class T> using Wide = std::conditional_t<is_storage_type<T>, float, T>;

double load(const void* p, Dtype dtype, std::int64_t i) {
    return visit_dtype<Dtypes::all>(
        dtype, [&]<class T>(std::type_identity<T>) { return double(Wide<T>(static_cast<const T*>(p)[i])); });
}

void store(void* p, Dtype dtype, std::int64_t i, double value) {
    visit_dtype<Dtypes::floating>(
        dtype, [&]<class T>(std::type_identity<T>) { static_cast<T*>(p)[i] = T(Wide<T>(value)); });
}

double to_dtype(Dtype dtype, double value) {
    return visit_dtype<Dtypes::floating>(
        dtype, [&]<class T>(std::type_identity<T>) { return double(Wide<T>(T(Wide<T>(value)))); });
}

// tanh of sqrt(2/pi) (x + 0.044715 x^3), with a relative error up to 2^-11 as that of tanh.approx.f32 unless
// fake_lt.precise_gelu.
double tanh_of(double x) {
    const double t = std::tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x));
    if (fake_lt.precise_gelu) return t;
    int exponent = 0;
    const double mantissa = std::frexp(t, &exponent);
    return std::ldexp(std::round(mantissa * 2048) / 2048, exponent);
}

double apply(Epilogue epilogue, double x) {
    if (epilogue == Epilogue::relu || epilogue == Epilogue::relu_bias || writes_mask(epilogue))
        return x < 0 || (std::isnan(x) && fake_lt.relu_drops_nan) ? 0 : x;
    if (has_activation(epilogue)) return 0.5 * x * (1 + tanh_of(x));
    return x;
}

// TF32 keeps 10 bits of the mantissa, rounded to nearest.
float to_tf32(float x) {
    return std::bit_cast<float>((std::bit_cast<std::uint32_t>(x) + 0x1000u) & 0xffffe000u);
}

// Factor of a block of a row of op(A) or a column of op(B). NVIDIA's layout: 128 lines x 4 blocks lie in 512
// bytes, of which 16 consecutive ones are of lines that are 32 apart.
double block_factor(const Problem& p, const void* factors, std::int64_t line, std::int64_t block, bool of_a) {
    using enum FakeLt::Scale;
    if (p.scales != Granularity::block32 || fake_lt.scale == ignored) return 1;
    if (fake_lt.scale == first && of_a) block = 0;
    const std::int64_t blocks = p.k / 32, across = (blocks + 3) / 4, down = ((of_a ? p.m : p.n) + 127) / 128;
    const std::int64_t tile_row = line / 128, tile_column = block / 4;
    const std::int64_t tile =
        fake_lt.scale == tiles_down ? tile_column * down + tile_row : tile_row * across + tile_column;
    const std::int64_t in_tile = (line % 32) * 16 + (line % 128 / 32) * 4 + block % 4;
    const std::int64_t at = fake_lt.scale == in_rows ? line * blocks + block : tile * 512 + in_tile;
    const double factor = load(factors, float8_e8m0fnu, at);
    return fake_lt.scale == divides ? 1 / factor : factor;
}

// Sums of k products, which are added in type T, from copies of op(A) by rows and of op(B) by columns.
template <class T> class Sums {
public:
    Sums(const Problem& p, const Operands& o, std::int64_t k)
        : m_(p.m), n_(p.n), k_(k), a_factors_(o.a_scale) {
        a_ =
            lines(p, o.a, p.a_type, p.stride_a, p.m, p.trans_a ? p.lda : 1, p.trans_a ? 1 : p.lda, o.a_scale);
        b_ =
            lines(p, o.b, p.b_type, p.stride_b, p.n, p.trans_b ? 1 : p.ldb, p.trans_b ? p.ldb : 1, o.b_scale);
    }
    double operator()(std::int64_t batch, std::int64_t i, std::int64_t j) const {
        const T *const a = a_.data() + (batch * m_ + i) * k_, *const b = b_.data() + (batch * n_ + j) * k_;
        T sum = 0;
        for (std::int64_t l = 0; l < k_; ++l) sum += a[l] * b[l];
        return sum;
    }

private:
    std::vector<T> lines(const Problem& p, const void* matrix, Dtype dtype, std::int64_t stride,
                         std::int64_t count, std::int64_t line_step, std::int64_t term_step,
                         const void* factors) const {
        std::vector<T> values;
        values.reserve(std::size_t(p.batch * count * k_));
        for (std::int64_t batch = 0; batch < p.batch; ++batch)
            for (std::int64_t line = 0; line < count; ++line)
                for (std::int64_t l = 0; l < k_; ++l) {
                    const T x = T(load(matrix, dtype, batch * stride + line * line_step + l * term_step) *
                                  block_factor(p, factors, line, l / 32, factors == a_factors_));
                    values.push_back(p.tf32 ? T(to_tf32(float(x))) : x);
                    // The tiles are multiplied whole: zeros with the factors of their padding.
                    for (std::int64_t block = l + 1 < k_ ? 0 : p.k / 32; l + 1 == k_ && block % 4 != 0;
                         ++block)
                        values.back() += T(0 * block_factor(p, factors, line, block, factors == a_factors_));
                }
        return values;
    }

    const std::int64_t m_, n_, k_;
    const void* const a_factors_;
    std::vector<T> a_, b_;
};

// Index of the bit of element (i, j) of D.
std::int64_t bit_of(const Problem& p, std::int64_t i, std::int64_t j) {
    const std::int64_t ld = relu_mask_ld(p.m);
    switch (fake_lt.mask) {
        case FakeLt::Mask::big_endian:
            return (j * ld + i) ^ 7;
        case FakeLt::Mask::packed:
            return j * p.m + i;
        case FakeLt::Mask::transposed:
            return (i * p.n + j) % (ld * p.n);
        default:
            return j * ld + i;
    }
}

void write_bit(const Problem& p, const Operands& o, std::int64_t i, std::int64_t j, double value) {
    const std::int64_t bit = bit_of(p, i, j);
    std::uint8_t& byte = static_cast<std::uint8_t*>(o.aux)[bit / 8];
    const std::uint8_t one = static_cast<std::uint8_t>(1u << bit % 8);
    const bool set = value > 0 || (value == 0 && fake_lt.mask == FakeLt::Mask::zero_is_positive) ||
                     (std::isnan(value) && fake_lt.mask != FakeLt::Mask::nan_is_zero);
    byte = static_cast<std::uint8_t>(set ? byte | one : byte & ~one);
}

// Factor by which a gradient epilogue multiplies element (i, j).
double slope(const Problem& p, const Operands& o, std::int64_t i, std::int64_t j) {
    if (reads_mask(p.epilogue)) {
        if (fake_lt.mask == FakeLt::Mask::ignored) return 1;
        const std::int64_t bit = bit_of(p, i, j);
        return static_cast<const std::uint8_t*>(o.aux)[bit / 8] >> bit % 8 & 1;
    }
    const double x = load(o.aux, p.d_type, j * p.ldd + i) + (fake_lt.shifted_slope ? 0.0625 : 0);
    const double c = 0.79788456080286535588, t = tanh_of(x);
    const double exact = 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x);
    return fake_lt.half_slope && exact < 1 ? 0.5 : exact;
}

// Stores the gradient of a bias, in D's type: `count` sums of `terms` values each, value(sum, term).
template <class Value> void store_bias_grad(const Problem& p, const Operands& o, std::int64_t count,
                                            std::int64_t terms, const Value& value) {
    using enum FakeLt::BiasGrad;
    const FakeLt::BiasGrad wrong = fake_lt.bias_grad;
    for (std::int64_t i = 0; i < count; ++i) {
        double sum = wrong == added ? load(o.bias_grad, p.d_type, i) : 0;
        for (std::int64_t term = 0; term < terms - (wrong == short_of_a_row); ++term) sum += value(i, term);
        if (wrong == rounded) sum = to_dtype(bfloat16, sum);
        const bool permuted_here = wrong == permuted && p.epilogue == Epilogue::bgrad_b;
        store(o.bias_grad, p.d_type, permuted_here ? count - 1 - i : i, sum);
    }
    lt_device::mark_written(o.bias_grad, std::size_t(count) * size_of(p.d_type));
}

void store_bias_grad(const Problem& p, const Operands& o) {
    if (p.epilogue == Epilogue::bgrad_b)  // of op(B)'s columns
        store_bias_grad(p, o, p.n, p.k, [&](std::int64_t j, std::int64_t l) {
            return load(o.b, p.b_type, p.trans_b ? j + l * p.ldb : j * p.ldb + l);
        });
    else if (has_bias_grad(p.epilogue))  // of D's rows
        store_bias_grad(p, o, p.m, p.n,
                        [&](std::int64_t i, std::int64_t j) { return load(o.d, p.d_type, j * p.ldd + i); });
}

// Factor of element (i, j) of a product of float8 operands.
double scale_of(const Problem& p, const Operands& o, std::int64_t i, std::int64_t j) {
    using enum FakeLt::Scale;
    if (o.a_scale == nullptr || o.b_scale == nullptr || fake_lt.scale == ignored) return 1;
    if (p.scales == Granularity::block32) return 1;  // the factors are in the sums
    const bool rows = p.scales == Granularity::row;
    const double factor = load(o.a_scale, float32, rows && fake_lt.scale != first ? i : 0) *
                          load(o.b_scale, float32, rows ? j : 0);
    return fake_lt.scale == divides ? 1 / factor : factor;
}

void finish(const Problem& p, const Operands& o, std::int64_t batch, std::int64_t i, std::int64_t j,
            double sum, bool rounds) {
    const std::int64_t at = batch * p.stride_d + j * p.ldd + i;
    double value = o.alpha * sum * scale_of(p, o, i, j);
    if (o.beta != 0) value += o.beta * load(o.d, p.d_type, at);
    if (has_bias(p.epilogue)) {
        const double factor = fake_lt.scale == FakeLt::Scale::after_bias ? scale_of(p, o, i, j) : 1;
        value = (rounds ? to_dtype(p.d_type, value) : value) + factor * load(o.bias, p.d_type, i);
    }
    if (is_gradient(p.epilogue)) value *= slope(p, o, i, j);
    if (writes_before(p.epilogue) && !fake_lt.forgets_aux) store(o.aux, p.d_type, at, value);
    if (writes_mask(p.epilogue) && !fake_lt.forgets_aux) write_bit(p, o, i, j, value);
    store(o.d, p.d_type, at, apply(p.epilogue, value));
}

// Marks the results of a column as written.
void mark_column(const Problem& p, const Operands& o, std::int64_t batch, std::int64_t j) {
    const auto mark = [](void* memory, std::int64_t first, std::int64_t bytes) {
        lt_device::mark_written(static_cast<char*>(memory) + first, std::size_t(bytes));
    };
    const auto item = std::int64_t(size_of(p.d_type)), first = (batch * p.stride_d + j * p.ldd) * item;
    mark(o.d, first, p.m * item);
    if (writes_before(p.epilogue)) mark(o.aux, first, p.m * item);
    if (writes_mask(p.epilogue)) mark(o.aux, j * relu_mask_ld(p.m) / 8, (p.m + 7) / 8);
}

// Makes the results from their sums, sum(batch, i, j).
template <class Sum> void finish_all(const Problem& p, const Operands& o, const Algo& algo, const Sum& sum) {
    const bool rounds = int(algo.data[0]) < fake_lt.rounding_bias;
    for (std::int64_t batch = 0; batch < p.batch; ++batch)
        for (std::int64_t j = 0; j < p.n; ++j) {
            for (std::int64_t i = 0; i < p.m; ++i) finish(p, o, batch, i, j, sum(batch, i, j), rounds);
            mark_column(p, o, batch, j);
        }
    store_bias_grad(p, o);
}

// Enqueues one kernel. If the workspace has room for the sums, there are two, as with split-K: the first
// writes the sums, the second makes the results of them.
template <class T>
void enqueue(const Problem& p, const Operands& o, const Algo& algo, std::int64_t k, void* stream) {
    const std::string name =
        "product " + std::to_string(p.m) + "x" + std::to_string(p.n) + "x" + std::to_string(p.k);
    const std::int64_t results = p.batch * p.m * p.n;
    if (algo.workspace < std::size_t(results) * sizeof(double))
        return lt_device::enqueue(stream, name, [=] { finish_all(p, o, algo, Sums<T>(p, o, k)); });
    lt_device::enqueue(stream, "", [=] {
        const Sums<T> sum(p, o, k);
        for (std::int64_t at = 0; at < results; ++at)
            store(o.workspace, float64, at, sum(at / (p.m * p.n), at % p.m, at / p.m % p.n));
    });
    lt_device::enqueue(stream, name, [=] {
        finish_all(p, o, algo, [&](std::int64_t batch, std::int64_t i, std::int64_t j) {
            return load(o.workspace, float64, (batch * p.n + j) * p.m + i);
        });
    });
}

}  // namespace

bool exists(std::uint64_t number) {
    const std::uint64_t hidden = number - candidate_count;
    return number < candidate_count || (hidden < fake_lt.hidden_ms.size() && fake_lt.hidden_ms[hidden] >= 0);
}

void multiply(const Problem& p, const Operands& o, const Algo& algo, void* stream) {
    if (lt_device::is_idle()) return;
    const int number = int(algo.data[0]);
    std::int64_t k = number < fake_lt.dropping_tail ? p.k / 32 * 32 : p.k;
    const bool drops = fake_lt.hidden_dropping >= 0 && number - candidate_count == fake_lt.hidden_dropping;
    if (number < fake_lt.dropping_last || drops) --k;
    const bool wide =
        p.d_type == float64 || p.scales == Granularity::block32;  // with the range of the factors
    (wide ? enqueue<double> : enqueue<float>)(p, o, algo, k, stream);
}

}  // namespace mezzo::emulation
