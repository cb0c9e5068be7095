// Parts of a product's operands and of its result. Only for code that is compiled once; vector.h says why.
#pragma once

#include "cpu/isa/isa_tables.h"

namespace mezzo::cpu {

inline std::int64_t round_up(std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit * unit; }

inline const void* element(const void* base, Dtype type, std::int64_t index) {
    if (index == 0 || base == nullptr) return base;  // null: an operand without elements
    return static_cast<const char*>(base) + index * static_cast<std::int64_t>(size_of(type));
}
inline void* element(void* base, Dtype type, std::int64_t index) {
    return const_cast<void*>(element(static_cast<const void*>(base), type, index));
}

// op(A) from row i and step p of k on; op(B) from step p of k and column j on.
inline Operand rows_of_a(const Gemm& g, std::int64_t i, std::int64_t p) {
    const std::int64_t at = g.trans_a ? p * g.lda + i : i * g.lda + p;
    return {element(g.a, g.a_type, at), g.a_type, g.lda, !g.trans_a};
}
inline Operand columns_of_b(const Gemm& g, std::int64_t p, std::int64_t j) {
    const std::int64_t at = g.trans_b ? j * g.ldb + p : p * g.ldb + j;
    return {element(g.b, g.b_type, at), g.b_type, g.ldb, g.trans_b};
}

// Whether an epilogue stores C past the caches, in whole lines, because C would leave the L2 cache before it
// is read again. Such stores do not read a line before they overwrite it.
inline bool streams(const GemmKernels& kernels, const Gemm& g) {
    constexpr std::int64_t line = 64, large = std::int64_t(4) << 20, size = sizeof(float);
    const auto begins_line = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p) % line == 0; };
    return kernels.lanes * size == line && g.c_type == float32 && g.beta == 0 && g.m * g.n * size >= large &&
           g.ldc * size % line == 0 && begins_line(g.c) && begins_line(g.pre_activation);
}

// Finishes rows x columns of C at (i, j) from the sums t. `bias` is float32 or null.
inline void finish_block(const GemmKernels& kernels, const Gemm& g, const float* bias, std::int64_t i,
                         std::int64_t j, std::int64_t rows, std::int64_t columns, const float* t,
                         std::int64_t ldt) {
    Epilogue e;
    e.t = t;
    e.ldt = ldt;
    e.rows = rows;
    e.columns = columns;
    e.c = element(g.c, g.c_type, i * g.ldc + j);
    e.pre_activation = g.pre_activation ? element(g.pre_activation, g.c_type, i * g.ldc + j) : nullptr;
    e.saved = element(g.saved, g.c_type, i * g.ldc + j);
    e.added = element(g.added, g.c_type, i * g.ldc + j);
    e.ldc = g.ldc;
    e.c_type = g.c_type;
    e.bias = bias ? bias + j : nullptr;
    e.activation = g.activation;
    e.alpha = g.alpha;
    e.beta = g.beta;
    e.stream = streams(kernels, g) && j % kernels.lanes == 0;
    kernels.epilogue(e);
}

}  // namespace mezzo::cpu
