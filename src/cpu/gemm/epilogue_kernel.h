// The GEMM kernels, one source for all instruction sets. The including file defines MEZZO_LANES (floats per
// vector), MEZZO_MR and MEZZO_NR (register tile; NR a multiple of LANES) and MEZZO_KC, MEZZO_MC, MEZZO_NC
// (see GemmKernels), and uses the table `kernels`. Everything has internal linkage; vector.h says why.
#pragma once

#include <type_traits>

#define MEZZO_DEPTH 1
#include "cpu/gemm/code_kernel.h"
#include "cpu/gemm/micro_kernel.h"
#include "cpu/gemm/pack.h"
#include "cpu/gemm/panel_kernel.h"
#include "cpu/gemm/skinny_kernel.h"
#include "cpu/isa/vector_math.h"

namespace mezzo::cpu {
namespace {

static_assert(MEZZO_MC % mr == 0 && MEZZO_NC % nr == 0);

template <Activation activation> MEZZO_INLINE Vector activate(Vector v) {
    if constexpr (activation == Activation::relu) return relu<lanes>(v);
    if constexpr (activation == Activation::gelu) return gelu<lanes>(v);
    if constexpr (activation == Activation::gelu_tanh) return gelu_tanh<lanes>(v);
    return v;
}

// Gradient through the activation: v times the derivative. `saved` is relu's result, or gelu's input.
template <Activation activation> MEZZO_INLINE Vector through(Vector v, Vector saved) {
    if constexpr (activation == Activation::relu) return select<lanes>(saved <= 0.0f, Vector{}, v);
    if constexpr (activation == Activation::gelu) return v * gelu_derivative<lanes>(saved);
    return v;
}

// Finishes one vector of `count` <= lanes elements at column j of a row.
template <Activation activation, bool full, class T>
MEZZO_INLINE void finish(const Epilogue& e, const float* t, T* c, T* pre, const T* saved, const T* added,
                         std::int64_t j, std::int64_t count) {
    constexpr bool is_float = std::is_same_v<T, float>;
    const auto get = [=](const auto* from) __attribute__((always_inline)) {
        return full ? load<lanes>(from + j) : load_first<lanes>(from + j, count);
    };
    const auto put = [&](T * to, Vector x) __attribute__((always_inline)) {
        if constexpr (full && is_float && lanes == 16)
            if (e.stream) return stream<lanes>(to + j, x);
        full ? store<lanes>(to + j, x) : store_first<lanes>(to + j, x, count);
    };
    Vector v = load<lanes>(t + j) * e.alpha;
    if (e.bias) v += get(e.bias);
    if (e.beta != 0.0f) v += e.beta * get(added);
    if (pre) put(pre, v);
    v = is_float && saved ? through<activation>(v, get(saved)) : activate<activation>(v);
    put(c, v);
}

template <Activation activation, class T> void epilogue_rows(const Epilogue& e) {
    for (std::int64_t i = 0; i < e.rows; ++i) {
        const float* t = e.t + i * e.ldt;
        T* c = static_cast<T*>(e.c) + i * e.ldc;
        T* pre = e.pre_activation ? static_cast<T*>(e.pre_activation) + i * e.ldc : nullptr;
        const T* saved = e.saved ? static_cast<const T*>(e.saved) + i * e.ldc : nullptr;
        const T* added = e.added ? static_cast<const T*>(e.added) + i * e.ldc : c;
        std::int64_t j = 0;
        for (; j + lanes <= e.columns; j += lanes)
            finish<activation, true>(e, t, c, pre, saved, added, j, lanes);
        if (j < e.columns) finish<activation, false>(e, t, c, pre, saved, added, j, e.columns - j);
    }
    if (e.stream) fence();
}

template <Activation activation> void epilogue_type(const Epilogue& e) {
    with_type(e.c_type, nullptr, [&](const auto* c) {
        epilogue_rows<activation, std::remove_cv_t<std::remove_pointer_t<decltype(c)>>>(e);
    });
}

template <int = 0> void epilogue(const Epilogue& e) {
    switch (e.activation) {
        case Activation::none:
            return epilogue_type<Activation::none>(e);
        case Activation::relu:
            return epilogue_type<Activation::relu>(e);
        case Activation::gelu:
            return epilogue_type<Activation::gelu>(e);
        case Activation::gelu_tanh:
            return epilogue_type<Activation::gelu_tanh>(e);
    }
}

constexpr GemmKernels kernels = {mr,          nr,           depth,   MEZZO_KC,        MEZZO_MC, MEZZO_NC,
                                 pack<mr>,    pack<nr>,     tile<>,  epilogue<>,      skinny<>, small<>,
                                 lanes,       panel_sums<>, nullptr, tile_in_place<>, panels<>, codes<>,
                                 all_values<>};

}  // namespace
}  // namespace mezzo::cpu
