// The GEMM kernels, one source for all instruction sets. The including file defines MEZZO_LANES (floats per
// vector), MEZZO_MR and MEZZO_NR (register tile; NR a multiple of LANES) and MEZZO_KC, MEZZO_MC, MEZZO_NC
// (see GemmKernels), and uses the table `kernels`. Everything has internal linkage; vector.h says why.
#pragma once

#include <type_traits>

#define MEZZO_DEPTH 1
#include "cpu/gemm_pack.h"
#include "cpu/gemm_skinny.h"
#include "cpu/gemm_tile.h"
#include "cpu/vector_math.h"

namespace mezzo::cpu {
namespace {

static_assert(MEZZO_MC % mr == 0 && MEZZO_NC % nr == 0);

template <Activation activation> MEZZO_INLINE Vector activate(Vector v) {
    if constexpr (activation == Activation::relu) return relu<lanes>(v);
    if constexpr (activation == Activation::gelu) return gelu<lanes>(v);
    if constexpr (activation == Activation::gelu_tanh) return gelu_tanh<lanes>(v);
    return v;
}

// One vector of `count` <= lanes elements at column j of a row.
template <Activation activation, bool full, class T>
MEZZO_INLINE void finish(const Epilogue& e, const float* t, T* c, T* pre, std::int64_t j,
                         std::int64_t count) {
    Vector v = load<lanes>(t + j) * e.alpha;
    if (e.bias) v += full ? load<lanes>(e.bias + j) : load_first<lanes>(e.bias + j, count);
    if (e.beta != 0.0f) v += e.beta * (full ? load<lanes>(c + j) : load_first<lanes>(c + j, count));
    if (pre) full ? store<lanes>(pre + j, v) : store_first<lanes>(pre + j, v, count);
    v = activate<activation>(v);
    full ? store<lanes>(c + j, v) : store_first<lanes>(c + j, v, count);
}

template <Activation activation, class T> void epilogue_rows(const Epilogue& e) {
    for (std::int64_t i = 0; i < e.rows; ++i) {
        const float* t = e.t + i * e.ldt;
        T* c = static_cast<T*>(e.c) + i * e.ldc;
        T* pre = e.pre_activation ? static_cast<T*>(e.pre_activation) + i * e.ldc : nullptr;
        std::int64_t j = 0;
        for (; j + lanes <= e.columns; j += lanes) finish<activation, true>(e, t, c, pre, j, lanes);
        if (j < e.columns) finish<activation, false>(e, t, c, pre, j, e.columns - j);
    }
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

constexpr GemmKernels kernels = {mr,       nr,     depth,      MEZZO_KC, MEZZO_MC, MEZZO_NC, pack<mr>,
                                 pack<nr>, tile<>, epilogue<>, skinny<>, lanes,    nullptr,  tile_in_place<>};

}  // namespace
}  // namespace mezzo::cpu
