// Loops over vectors that are converted while they are loaded and stored, a part of loops_kernel.h.
#pragma once

#include "cpu/elementwise/loops.h"
#include "cpu/isa/vector_math.h"
#include "kernels/functors.h"

namespace mezzo::cpu {
namespace {

#if defined(__AVX512F__)
constexpr int float_lanes = 16;
#elif defined(__AVX2__)
constexpr int float_lanes = 8;
#else
constexpr int float_lanes = 4;
#endif
using Floats = FloatN<float_lanes>;

// g times the derivative at x.
struct GeluGrad {
    MEZZO_INLINE Floats operator()(Floats g, Floats x) const { return g * gelu_derivative<float_lanes>(x); }
};
struct Gelu {
    MEZZO_INLINE Floats operator()(Floats x) const { return gelu<float_lanes>(x); }
};
struct Relu {
    MEZZO_INLINE Floats operator()(Floats x) const { return relu<float_lanes>(x); }
};

// Calls body(load, store, i) for each whole vector, then for the rest with a load and a store that access no
// memory behind the end.
template <class T, class F> MEZZO_INLINE void for_vectors(std::int64_t n, const F body) {
    std::int64_t i = 0;
    const auto whole = [](const T* p) __attribute__((always_inline)) { return load<float_lanes>(p); };
    const auto put = [](T * p, Floats v) __attribute__((always_inline)) { store<float_lanes>(p, v); };
    for (; i + float_lanes <= n; i += float_lanes) body(whole, put, i);
    const std::int64_t left = n - i;
    if (left == 0) return;
    body([left](const T* p) { return load_first<float_lanes>(p, left); },
         [left](T* p, Floats v) { store_first<float_lanes>(p, v, left); }, i);
}

template <class F, class T> void unary_vectors(void* dst, const void* x, std::int64_t n, double, double) {
    T* const to = static_cast<T*>(dst);
    const T* const from = static_cast<const T*>(x);
    for_vectors<T>(
        n, [=](const auto get, const auto put, std::int64_t i)
               __attribute__((always_inline)) { put(to + i, F{}(get(from + i))); });
}

template <class F, class T>
void binary_vectors(void* dst, const void* pa, const void* pb, std::int64_t n, Single single) {
    if constexpr (std::is_same_v<typename Mirrored<F>::type, F>)
        if (single == Single::a) return binary_vectors<F, T>(dst, pb, pa, n, Single::b);
    T* const to = static_cast<T*>(dst);
    const T *const a = static_cast<const T*>(pa), *const b = static_cast<const T*>(pb);
    const auto run = [=](const auto read_a, const auto read_b) __attribute__((always_inline)) {
        for_vectors<T>(
            n, [=](const auto get, const auto put, std::int64_t i)
                   __attribute__((always_inline)) { put(to + i, F{}(read_a(get, i), read_b(get, i))); });
    };
    const auto each = [](const T* p) __attribute__((always_inline)) {
        return [p](const auto get, std::int64_t i) __attribute__((always_inline)) { return get(p + i); };
    };
    const auto one = [](const T* p) __attribute__((always_inline)) {
        const Floats value = Floats{} + load_first<4>(p, 1)[0];
        return [value](const auto, std::int64_t) __attribute__((always_inline)) { return value; };
    };
    if (single == Single::b)
        run(each(a), one(b));
    else if (single == Single::none || std::is_same_v<typename Mirrored<F>::type, F>)
        run(each(a), each(b));
    else
        run(one(a), each(b));
}

// GeluGrad costs much more than reading an operand: see spread().
template <class T> void gelu_grad(void* dst, const void* pa, const void* pb, std::int64_t n, Single single) {
    spread(
        static_cast<T*>(dst), static_cast<const T*>(pa), static_cast<const T*>(pb), n, single,
        [](T * to, const T* a, const T* b, std::int64_t count) __attribute__((always_inline)) {
            for_vectors<T>(
                count, [=](const auto get, const auto put, std::int64_t i) __attribute__((always_inline)) {
                    put(to + i, GeluGrad{}(get(a + i), get(b + i)));
                });
        });
}

}  // namespace
}  // namespace mezzo::cpu
