// The inner loops, one source for all instruction sets: plain loops that compilers vectorise at -O3, and
// vector types where the order of a sum has to be fixed. The including file defines MEZZO_ISA_NAMESPACE and
// uses `make_loops`. Everything has internal linkage or is in that namespace, and calls no inline function of
// the standard library; vector.h says why.
#pragma once

#include "cpu/elementwise/loops.h"
#include "cpu/elementwise/loops_step.h"
#include "kernels/functor_loss.h"
#include "kernels/functors.h"

#if defined(__clang__)
#pragma clang diagnostic ignored "-Wpass-failed"  // loops over libm's double functions stay scalar
#define MEZZO_VECTOR_LOOP _Pragma("clang loop vectorize(assume_safety)")
#else
#define MEZZO_VECTOR_LOOP _Pragma("GCC ivdep")
#endif
#pragma GCC diagnostic ignored "-Wpsabi"

#include "cpu/elementwise/loops_rows.h"

namespace mezzo::cpu {
namespace {

namespace math = functors::math;

// A scalar attribute as T. Integers saturate, so that clamp may have infinite bounds.
template <class T> MEZZO_HD T scalar_as(double value) {
    if constexpr (std::is_integral_v<T>) {
        constexpr T highest = sizeof(T) == 4 ? T(0x7fffffff) : T(0x7fffffffffffffff);
        if (value >= double(highest)) return highest;
        if (value <= -double(highest)) return -highest - 1;
        return value == value ? T(value) : T(0);
    } else {
        return T(value);
    }
}

// ---- element-wise

template <class T, class F> MEZZO_HD void map(T* dst, const T* x, std::int64_t n, const F f) {
    MEZZO_VECTOR_LOOP for (std::int64_t i = 0; i < n; ++i) dst[i] = f(x[i]);
}

template <class F, class T> void unary(void* dst, const void* x, std::int64_t n, double, double) {
    map(static_cast<T*>(dst), static_cast<const T*>(x), n, F{});
}

template <template <class> class F, class T>
void unary_scalar(void* dst, const void* x, std::int64_t n, double alpha, double beta) {
    map(static_cast<T*>(dst), static_cast<const T*>(x), n, F<T>{scalar_as<T>(alpha), scalar_as<T>(beta)});
}

// sin and cos: libm computes blocks with an argument that is infinite, NaN or beyond the range of the
// reduction.
template <class F, float (*exact)(float)>
void periodic(void* dst, const void* x, std::int64_t n, double, double) {
    constexpr std::int64_t block = 256;
    for (std::int64_t begin = 0; begin < n; begin += block) {
        const std::int64_t count = n - begin < block ? n - begin : block;
        const float* from = static_cast<const float*>(x) + begin;
        float* to = static_cast<float*>(dst) + begin;
        int outside = 0;
        for (std::int64_t i = 0; i < count; ++i) outside |= !(math::abs(from[i]) < math::sin_limit);
        if (outside)
            for (std::int64_t i = 0; i < count; ++i) to[i] = exact(from[i]);
        else
            map(to, from, count, F{});
    }
}
float exact_sin(float x) { return __builtin_sinf(x); }
float exact_cos(float x) { return __builtin_cosf(x); }

// Mirrored<F>::type is G if F(a, b) == G(b, a), so that F needs fewer loops of its own or none.
template <class F> struct Mirrored { using type = void; };
#define MEZZO_MIRRORED(f, g) \
    template <> struct Mirrored<functors::f> { using type = functors::g; };
MEZZO_MIRRORED(add, add)
MEZZO_MIRRORED(mul, mul)
MEZZO_MIRRORED(eq, eq)
MEZZO_MIRRORED(ne, ne)
MEZZO_MIRRORED(logical_and, logical_and)
MEZZO_MIRRORED(logical_or, logical_or)
MEZZO_MIRRORED(gt, lt)
MEZZO_MIRRORED(ge, le)
#undef MEZZO_MIRRORED

// Whether F<T> has one loop instead of three: a single operand is copied to all elements of a block. So do
// functions that cost much more than reading an operand, and those of 64-bit types, but for gelu_grad: there
// the factors of a single input are computed outside of the loop, where they round in another way.
template <class F, class T> struct Spread { static constexpr bool value = sizeof(T) == 8; };
template <class T> struct Spread<functors::gelu_grad, T> { static constexpr bool value = false; };
#define MEZZO_SPREAD(f) \
    template <class T> struct Spread<functors::f, T> { static constexpr bool value = true; };
MEZZO_SPREAD(atan2)
MEZZO_SPREAD(gelu_tanh_grad)
MEZZO_SPREAD(mish_grad)
MEZZO_SPREAD(remainder)
MEZZO_SPREAD(silu_grad)
#undef MEZZO_SPREAD

// Calls body(to, a, b, count) for all n elements: once, or with a single operand for each block.
template <class T, class R, class F>
MEZZO_HD void spread(R* to, const T* a, const T* b, std::int64_t n, Single single, const F body) {
    constexpr std::int64_t most = 256;
    T values[most];
    const std::int64_t block = single == Single::none || n < most ? n : most;
    if (single != Single::none) {
        const T value = single == Single::a ? *a : *b;
        for (std::int64_t i = 0; i < block; ++i) values[i] = value;
        (single == Single::a ? a : b) = values;
    }
    for (std::int64_t begin = 0; begin < n; begin += block) {
        const std::int64_t count = n - begin < block ? n - begin : block;
        body(to + begin, single == Single::a ? a : a + begin, single == Single::b ? b : b + begin, count);
    }
}

template <class F, class T, class R>
void binary_of(R* to, const T* a, const T* b, std::int64_t n, Single single) {
    constexpr bool symmetric = std::is_same_v<typename Mirrored<F>::type, F>;
    if constexpr (Spread<F, T>::value) {
        spread(to, a, b, n, single, [](R* part, const T* x, const T* y, std::int64_t count) {
            MEZZO_VECTOR_LOOP for (std::int64_t i = 0; i < count; ++i) part[i] = F{}(x[i], y[i]);
        });
    } else if (single == Single::none) {
        MEZZO_VECTOR_LOOP for (std::int64_t i = 0; i < n; ++i) to[i] = F{}(a[i], b[i]);
    } else if (symmetric || single == Single::b) {
        const T* const x = single == Single::b ? a : b;
        const T value = single == Single::b ? *b : *a;
        MEZZO_VECTOR_LOOP for (std::int64_t i = 0; i < n; ++i) to[i] = F{}(x[i], value);
    } else {
        const T value = *a;
        MEZZO_VECTOR_LOOP for (std::int64_t i = 0; i < n; ++i) to[i] = F{}(value, b[i]);
    }
}

template <class F, class T, class R> __attribute__((noinline)) void binary(void* dst, const void* pa,
                                                                           const void* pb, std::int64_t n,
                                                                           Single single) {
    using Mirror = typename Mirrored<F>::type;
    if constexpr (std::is_void_v<Mirror> || std::is_same_v<Mirror, F>)
        binary_of<F>(static_cast<R*>(dst), static_cast<const T*>(pa), static_cast<const T*>(pb), n, single);
    else
        binary<Mirror, T, R>(dst, pb, pa, n,
                             single == Single::none ? single
                             : single == Single::a  ? Single::b
                                                    : Single::a);
}

template <class T> void select(void* dst, const std::uint8_t* condition, const void* pa, const void* pb,
                               std::int64_t n, Single single) {
    T* const to = static_cast<T*>(dst);
    const T *const a = static_cast<const T*>(pa), *const b = static_cast<const T*>(pb);
    if (single == Single::a) {
        const T value = *a;
        MEZZO_VECTOR_LOOP for (std::int64_t i = 0; i < n; ++i) to[i] = condition[i] ? value : b[i];
    } else {
        MEZZO_VECTOR_LOOP for (std::int64_t i = 0; i < n; ++i) to[i] = condition[i] ? a[i] : b[i];
    }
}

// pow: a single operand is copied to all elements of a block, because compilers would turn the tests of a
// value that is the same for all elements into branches outside of the loop.
void power(void* dst, const void* pa, const void* pb, std::int64_t n, Single single) {
    constexpr std::int64_t block = 256;
    float spread[block];
    const auto fill = [&](float value) {
        for (float& v : spread) v = value;
    };
    if (single == Single::a) fill(*static_cast<const float*>(pa));
    if (single == Single::b) fill(*static_cast<const float*>(pb));
    for (std::int64_t begin = 0; begin < n; begin += block) {
        const std::int64_t count = n - begin < block ? n - begin : block;
        const float* const a = single == Single::a ? spread : static_cast<const float*>(pa) + begin;
        const float* const b = single == Single::b ? spread : static_cast<const float*>(pb) + begin;
        float* const to = static_cast<float*>(dst) + begin;
        MEZZO_VECTOR_LOOP for (std::int64_t i = 0; i < count; ++i) to[i] = math::pow(a[i], b[i]);
    }
}
// Small whole exponents are products, which keep the digits of all results that are not below the range.
void power_scalar(void* dst, const void* x, std::int64_t n, double alpha, double) {
    const float exponent = float(alpha);
    float* const to = static_cast<float*>(dst);
    const float* const from = static_cast<const float*>(x);
    if (exponent == 2)
        map(to, from, n, [](float v) { return v * v; });
    else if (exponent == 3)
        map(to, from, n, [](float v) { return v * v * v; });
    else if (exponent == -1)
        map(to, from, n, [](float v) { return 1 / v; });
    else
        power(dst, x, &exponent, n, Single::b);
}

#if MEZZO_ISA_WIDE_TYPES
std::int64_t sum_i64(const std::int64_t* x, std::int64_t n) {
    std::uint64_t total = 0;
    for (std::int64_t i = 0; i < n; ++i) total += std::uint64_t(x[i]);
    return std::int64_t(total);
}
#endif

// ---- rows

// e^y and 1 - e^y for y <= 0, both to the last bits, from one exponential.
template <class T> struct ExpAndRest { T exp, rest; };
inline ExpAndRest<float> exp_and_rest(float y) {
    const auto parts = math::exp_parts(y);
    const float q = math::expm1_polynomial(parts.r), scale = parts.scale_low * parts.scale_high;
    return {(q + 1.0f) * parts.scale_low * parts.scale_high, (1.0f - scale) - scale * q};
}
inline ExpAndRest<double> exp_and_rest(double y) {
    const bool likely = y > -0.5;
    const double part = likely ? math::expm1(y) : math::exp(y);
    return likely ? ExpAndRest<double>{1 + part, -part} : ExpAndRest<double>{part, 1 - part};
}

// g - e^y sum(g), as g (1 - e^y) - e^y (sum(g) - g): nothing cancels where e^y rounds to 1. The sum has two
// parts, because T would round the other gradients away.
template <class T> void log_softmax_grad(T* dst, const T* g, const T* y, std::int64_t n, double sum_g) {
    const T high = T(sum_g), low = T(sum_g - double(high));
    MEZZO_VECTOR_LOOP for (std::int64_t i = 0; i < n; ++i) {
        const auto p = exp_and_rest(y[i]);
        dst[i] = g[i] * p.rest - p.exp * ((high - g[i]) + low);
    }
}

template <class T> void clamp_grad(T* dst, const T* g, const T* x, std::int64_t n, T low, T high) {
    MEZZO_VECTOR_LOOP for (std::int64_t i = 0; i < n; ++i) dst[i] =
        ((x[i] >= low) & (x[i] <= high)) ? g[i] : T(0);
}

// ---- gates

template <class F, class T> void gate(T* y, const T* a, const T* b, std::int64_t n) {
    MEZZO_VECTOR_LOOP for (std::int64_t i = 0; i < n; ++i) y[i] = F{}(a[i], b[i]);
}
template <class F, class T> void gate_grad(T* da, T* db, const T* g, const T* a, const T* b, std::int64_t n) {
    MEZZO_VECTOR_LOOP for (std::int64_t i = 0; i < n; ++i) {
        T to_a, to_b;
        F{}.gradient(g[i], a[i], b[i], to_a, to_b);
        da[i] = to_a;
        db[i] = to_b;
    }
}

}  // namespace
}  // namespace mezzo::cpu

#include "cpu/elementwise/loops_norm.h"

namespace mezzo::cpu {
namespace {

// ---- losses: x the input, t the target

template <class Loss, class T> void loss(T* dst, const T* x, const T* t, std::int64_t n, T beta) {
    MEZZO_VECTOR_LOOP for (std::int64_t i = 0; i < n; ++i) dst[i] = Loss::loss(x[i], t[i], beta);
}
// In three loops, because gcc vectorises none that has both functions.
template <class T> void bce_with_logits(T* dst, const T* x, const T* t, std::int64_t n, T) {
    constexpr std::int64_t block = 256;
    T rest[block];
    for (std::int64_t begin = 0; begin < n; begin += block, dst += block, x += block, t += block) {
        const std::int64_t count = n - begin < block ? n - begin : block;
        map(rest, x, count, [](T v) { return math::exp(-math::abs(v)); });
        map(rest, rest, count, [](T v) { return math::log1p(v); });
        MEZZO_VECTOR_LOOP for (std::int64_t i = 0; i < count; ++i) dst[i] =
            functors::LogitError::linear(x[i], t[i]) + rest[i];
    }
}
template <class Loss, class T> void loss_grad(T* dst, const T* x, const T* t, std::int64_t n, T beta) {
    MEZZO_VECTOR_LOOP for (std::int64_t i = 0; i < n; ++i) dst[i] = Loss::slope(x[i], t[i], beta);
}

}  // namespace
}  // namespace mezzo::cpu

#include "cpu/elementwise/loops_random.h"
#include "cpu/elementwise/loops_vector.h"

namespace mezzo::cpu {
namespace {

// ---- the table

// Entries for {float, double, int32, int64} of an op that computes with integers (same), or with real numbers
// only (real).
#if MEZZO_ISA_WIDE_TYPES
#define MEZZO_TYPES_same(loop, ...)                                                           \
    {                                                                                         \
        loop<__VA_ARGS__, float>, loop<__VA_ARGS__, double>, loop<__VA_ARGS__, std::int32_t>, \
            loop<__VA_ARGS__, std::int64_t>                                                   \
    }
#define MEZZO_TYPES_real(loop, ...) \
    { loop<__VA_ARGS__, float>, loop<__VA_ARGS__, double>, nullptr, nullptr }
#else
#define MEZZO_TYPES_same(loop, ...) \
    { loop<__VA_ARGS__, float>, nullptr, nullptr, nullptr }
#define MEZZO_TYPES_real MEZZO_TYPES_same
#endif

template <class F, class T> constexpr BinaryLoop arithmetic = binary<F, T, T>;
template <class F, class T> constexpr BinaryLoop comparison = binary<F, T, bool>;

template <class T> constexpr RealLoops<T> real_loops = {
    sum<T>,
    row_sums<T>,
    {running_sum<T, false>, running_sum<T, true>},
    sum_squares<T>,
    product<T>,
    dot<T>,
    extreme<T, true>,
    extreme<T, false>,
    exp_sum<T>,
    softmax<T>,
    softmax_grad<T>,
    softmax_columns<T>,
    softmax_grad_columns<T>,
    log_softmax_grad<T>,
    clamp_grad<T>,
    {gate<functors::glu, T>, gate<functors::swiglu, T>},
    {gate_grad<functors::glu, T>, gate_grad<functors::swiglu, T>},
    add_to_double<T>,
    {loss<functors::SquaredError, T>, loss<functors::AbsoluteError, T>, loss<functors::SmoothError, T>,
     loss<functors::HuberError, T>, loss<functors::BinaryError, T>, bce_with_logits<T>},
    {loss_grad<functors::SquaredError, T>, loss_grad<functors::AbsoluteError, T>,
     loss_grad<functors::SmoothError, T>, loss_grad<functors::HuberError, T>,
     loss_grad<functors::BinaryError, T>, loss_grad<functors::LogitError, T>},
    all_finite<T>,
    {
#define MEZZO_OPTIMIZER(name) update_loop<functors::name##Row, T>(),
#include "mezzo/optimizers.def"
    },
    norm_row<T>,
    norm_grad_row<T>,
    dropped_sum<T>};

template <class F> constexpr void set_16bit(UnaryLoop (&loops)[2]) {
    loops[index_16bit(Dtype::float16)] = unary_vectors<F, float16_t>;
    loops[index_16bit(Dtype::bfloat16)] = unary_vectors<F, bfloat16_t>;
}
template <class F> constexpr void set_16bit(BinaryLoop (&loops)[2]) {
    loops[index_16bit(Dtype::float16)] = binary_vectors<F, float16_t>;
    loops[index_16bit(Dtype::bfloat16)] = binary_vectors<F, bfloat16_t>;
}

constexpr Loops make_loops() {
    Loops loops = {
        {
#define MEZZO_UNARY(name, cast, ints, save, gradient) MEZZO_TYPES_##ints(unary, functors::name),
#define MEZZO_UNARY_SCALAR(name, cast, ints, save, gradient) MEZZO_TYPES_##ints(unary_scalar, functors::name),
#include "mezzo/ops.def"
#undef MEZZO_UNARY
#undef MEZZO_UNARY_SCALAR
        },
        {
#define MEZZO_BINARY(name, cast, ints, save, gradient_a, gradient_b) \
    MEZZO_TYPES_##ints(arithmetic, functors::name),
#include "mezzo/ops.def"
#undef MEZZO_BINARY
        },
        {
#define MEZZO_COMPARE(name) MEZZO_TYPES_same(comparison, functors::name),
#include "mezzo/ops.def"
#undef MEZZO_COMPARE
        },
        real_loops<float>,
        {},
        {},
        {},
        {narrow_row_sums<float16_t>, narrow_row_sums<bfloat16_t>},
        {narrow_add_to_double<float16_t>, narrow_add_to_double<bfloat16_t>},
        {select<std::uint8_t>, select<std::uint16_t>, select<std::uint32_t>, select<std::uint64_t>},
        {},
        philox_blocks,
        kept,
        dropout,
        box_muller,
        join_halves,
        split_halves,
        round_stochastically,
        read_blocks,
        write_blocks};
#if MEZZO_ISA_WIDE_TYPES
    loops.f64 = real_loops<double>;
    loops.sum_i64 = sum_i64;
#endif
    loops.unary[int(UnaryOp::sin)][int(Compute::f32)] = periodic<functors::sin, exact_sin>;
    loops.unary[int(UnaryOp::pow_scalar)][int(Compute::f32)] = power_scalar;
    loops.binary[int(BinaryOp::pow)][int(Compute::f32)] = power;
    loops.unary[int(UnaryOp::gelu)][int(Compute::f32)] = unary_vectors<Gelu, float>;
    loops.binary[int(BinaryOp::gelu_grad)][int(Compute::f32)] = gelu_grad<float>;
    set_16bit<Gelu>(loops.unary16[int(UnaryOp::gelu)]);
    set_16bit<Relu>(loops.unary16[int(UnaryOp::relu)]);
    loops.binary16[int(BinaryOp::gelu_grad)][index_16bit(Dtype::float16)] = gelu_grad<float16_t>;
    loops.binary16[int(BinaryOp::gelu_grad)][index_16bit(Dtype::bfloat16)] = gelu_grad<bfloat16_t>;
    set_16bit<functors::add>(loops.binary16[int(BinaryOp::add)]);
    set_16bit<functors::sub>(loops.binary16[int(BinaryOp::sub)]);
    set_16bit<functors::mul>(loops.binary16[int(BinaryOp::mul)]);
    set_16bit<functors::div>(loops.binary16[int(BinaryOp::div)]);
    loops.unary[int(UnaryOp::cos)][int(Compute::f32)] = periodic<functors::cos, exact_cos>;
    return loops;
}

}  // namespace
}  // namespace mezzo::cpu
