// The products of the stand-in for cuBLASLt (tests/emulation/cublaslt.cpp) and its algorithms, linked in
// place of cuda/gemm/cublaslt_search.cpp. They can be wrong in the ways that are known of the real library.
#include <cmath>

#include "core/values.h"
#include "cuda/gemm/cublaslt.h"
#include "cuda/runtime.h"
#include "tests/emulation/engine.h"
#include "tests/emulation/fake_lt.h"
#include "tests/emulation/fake_product.h"
#include "tests/emulation/idle.h"

namespace mezzo::cuda::lt {
namespace {

using emulation::candidate_count;
using emulation::exists;
using emulation::fake_lt;
using emulation::FakeLt;

double load(const void* p, Dtype dtype, std::int64_t i) {
    return visit_dtype<Dtypes::floating>(dtype, [&]<class T>(std::type_identity<T>) {
        return convert_value<double>(static_cast<const T*>(p)[i]);
    });
}

void store(void* p, Dtype dtype, std::int64_t i, double value) {
    visit_dtype<Dtypes::floating>(
        dtype, [&]<class T>(std::type_identity<T>) { static_cast<T*>(p)[i] = convert_value<T>(value); });
}

// tanh of sqrt(2/pi) (x + 0.044715 x^3); unless precise with a relative error up to 2^-11, as tanh.approx.f32.
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
    std::uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    bits = (bits + 0x1000u) & 0xffffe000u;
    std::memcpy(&x, &bits, sizeof bits);
    return x;
}

double dot(const Problem& p, const Operands& o, std::int64_t batch, std::int64_t i, std::int64_t j,
           std::int64_t k) {
    const std::int64_t a0 = batch * p.stride_a + (p.trans_a ? i * p.lda : i), a_step = p.trans_a ? 1 : p.lda;
    const std::int64_t b0 = batch * p.stride_b + (p.trans_b ? j : j * p.ldb), b_step = p.trans_b ? p.ldb : 1;
    if (p.d_type == float64) {
        double sum = 0;
        for (std::int64_t l = 0; l < k; ++l)
            sum += load(o.a, p.a_type, a0 + l * a_step) * load(o.b, p.b_type, b0 + l * b_step);
        return sum;
    }
    float sum = 0;
    for (std::int64_t l = 0; l < k; ++l) {
        const float a = float(load(o.a, p.a_type, a0 + l * a_step));
        const float b = float(load(o.b, p.b_type, b0 + l * b_step));
        sum += p.tf32 ? to_tf32(a) * to_tf32(b) : a * b;
    }
    return sum;
}

// Where the bit of element (i, j) of D lies.
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

// By what a gradient epilogue multiplies element (i, j).
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

// The gradient of a bias, in D's type: `count` sums of `terms` values each, value(sum, term).
template <class Value> void sum_for_bias(const Problem& p, const Operands& o, std::int64_t count,
                                         std::int64_t terms, const Value& value) {
    using enum FakeLt::BiasGrad;
    const FakeLt::BiasGrad wrong = fake_lt.bias_grad;
    emulation::Engine& engine = emulation::Engine::get();
    engine.open_device_memory();
    for (std::int64_t i = 0; i < count; ++i) {
        double sum = wrong == added ? load(o.bias_grad, p.d_type, i) : 0;
        for (std::int64_t term = 0; term < terms - (wrong == short_of_a_row); ++term) sum += value(i, term);
        if (wrong == rounded) sum = float(bfloat16_t(float(sum)));
        const bool permuted_here = wrong == permuted && p.epilogue == Epilogue::bgrad_b;
        store(o.bias_grad, p.d_type, permuted_here ? count - 1 - i : i, sum);
    }
    engine.close_device_memory();
}

void sum_for_bias(const Problem& p, const Operands& o) {
    if (p.epilogue == Epilogue::bgrad_b)  // of op(B)'s columns
        sum_for_bias(p, o, p.n, p.k, [&](std::int64_t j, std::int64_t l) {
            return load(o.b, p.b_type, p.trans_b ? j + l * p.ldb : j * p.ldb + l);
        });
    else if (has_bias_grad(p.epilogue))  // of D's rows
        sum_for_bias(p, o, p.m, p.n,
                     [&](std::int64_t i, std::int64_t j) { return load(o.d, p.d_type, j * p.ldd + i); });
}

// Calls f(batch, i, j, index among all results) for each result, with device memory open.
template <class F> void for_each_result(const Problem& p, const F& f) {
    emulation::Engine& engine = emulation::Engine::get();
    engine.open_device_memory();
    std::int64_t index = 0;
    for (std::int64_t batch = 0; batch < p.batch; ++batch)
        for (std::int64_t j = 0; j < p.n; ++j)
            for (std::int64_t i = 0; i < p.m; ++i) f(batch, i, j, index++);
    engine.close_device_memory();
}

double rounded(Dtype dtype, double value) {
    return visit_dtype<Dtypes::floating>(dtype, [&]<class T>(std::type_identity<T>) {
        return convert_value<double>(convert_value<T>(value));
    });
}

void finish(const Problem& p, const Operands& o, std::int64_t batch, std::int64_t i, std::int64_t j,
            double sum, bool rounds) {
    const std::int64_t at = batch * p.stride_d + j * p.ldd + i;
    double value = o.alpha * sum;
    if (o.beta != 0) value += o.beta * load(o.d, p.d_type, at);
    if (has_bias(p.epilogue)) value = (rounds ? rounded(p.d_type, value) : value) + load(o.bias, p.d_type, i);
    if (is_gradient(p.epilogue)) value *= slope(p, o, i, j);
    if (writes_before(p.epilogue) && !fake_lt.forgets_aux) store(o.aux, p.d_type, at, value);
    if (writes_mask(p.epilogue) && !fake_lt.forgets_aux) write_bit(p, o, i, j, value);
    store(o.d, p.d_type, at, apply(p.epilogue, value));
}

// Makes the results from their sums, which sum(batch, i, j, index among all results) returns.
template <class Sum> void finish_all(const Problem& p, const Operands& o, const Algo& algo, const Sum& sum) {
    const bool rounds = int(algo.data[0]) < fake_lt.rounding_bias;
    const std::string size = std::to_string(p.m) + "x" + std::to_string(p.n) + "x" + std::to_string(p.k);
    emulation::tell({nullptr, "product " + size});
    for_each_result(p, [&](auto batch, auto i, auto j, auto index) {
        finish(p, o, batch, i, j, sum(batch, i, j, index), rounds);
    });
    sum_for_bias(p, o);
}

// If the workspace is large enough, two kernels as with split-K: one writes sums into the workspace, the
// other makes the results from them.
void compute(const Problem& p, const Operands& o, const Algo& algo, std::int64_t k) {
    const auto results = static_cast<std::size_t>(p.batch * p.m * p.n);
    if (algo.workspace < results * sizeof(double)) {
        emulation::run_or_capture([=] {
            finish_all(p, o, algo,
                       [&](auto batch, auto i, auto j, auto) { return dot(p, o, batch, i, j, k); });
        });
        return;
    }
    emulation::run_or_capture([=] {
        for_each_result(p, [&](auto batch, auto i, auto j, auto index) {
            store(o.workspace, float64, index, dot(p, o, batch, i, j, k));
        });
    });
    emulation::run_or_capture([=] {
        finish_all(p, o, algo,
                   [&](auto, auto, auto, auto index) { return load(o.workspace, float64, index); });
    });
}

// Milliseconds of a run.
double ms_of(int number) {
    return number < candidate_count ? fake_lt.ms[number]
                                    : fake_lt.hidden_ms.at(std::size_t(number - candidate_count));
}

}  // namespace

std::vector<AlgoFamily> families(Plan&) {
    std::vector<AlgoFamily> result(2);
    for (std::uint32_t i = 0; i < fake_lt.hidden_ms.size(); ++i) {
        AlgoFamily& family = result[i % 2];
        if (family.values.empty()) family = {int(i % 2), {{}}};
        family.values[0].push_back(i);
    }
    std::erase_if(result, [](const AlgoFamily& family) { return family.values.empty(); });
    return result;
}

std::optional<Algo> configuration(Plan& plan, const AlgoFamily& family, std::uint64_t number) {
    ++fake_lt.configurations;
    Algo algo;
    algo.data[0] = candidate_count + family.values.at(0).at(number);
    return accepts(plan, algo) ? std::optional(algo) : std::nullopt;
}

std::vector<Algo> neighbours(Plan& plan, const Algo& algo) {
    std::vector<Algo> result;
    for (const std::uint64_t number : {algo.data[0] - 1, algo.data[0] + 1}) {
        Algo other;
        other.data[0] = number;
        if (accepts(plan, other)) result.push_back(other);
    }
    return result;
}

std::string describe(const Algo& algo) { return "algorithm " + std::to_string(algo.data[0]); }

std::uint64_t version() { return fake_lt.version; }

}  // namespace mezzo::cuda::lt

namespace mezzo::emulation {

using namespace cuda::lt;

bool exists(std::uint64_t number) {
    const std::uint64_t hidden = number - candidate_count;
    return number < candidate_count || (hidden < fake_lt.hidden_ms.size() && fake_lt.hidden_ms[hidden] >= 0);
}

void pass_time(const Problem& p, int number) {
    if (options.clock_ms < 0) return;
    const bool fused = p.epilogue != Epilogue::none;
    options.clock_ms += ms_of(number) + (fused ? fake_lt.fused_ms : 0) +
                        (has_aux(p.epilogue) ? fake_lt.aux_ms : 0) +
                        (has_bias_grad(p.epilogue) ? fake_lt.bias_grad_ms : 0);
}

void multiply(const Problem& p, const Operands& o, const Algo& algo) {
    if (idle) return;
    const int number = int(algo.data[0]);
    std::int64_t k = number < fake_lt.dropping_tail ? p.k / 32 * 32 : p.k;
    const bool drops = fake_lt.hidden_dropping >= 0 && number - candidate_count == fake_lt.hidden_dropping;
    if (number < fake_lt.dropping_last || drops) --k;
    compute(p, o, algo, k);
}

}  // namespace mezzo::emulation
