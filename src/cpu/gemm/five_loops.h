// One matrix product on given kernels, cut into blocks for caches and threads.
#pragma once

#include "cpu/isa/isa_tables.h"

namespace mezzo::cpu {

// Multiply-adds below which waking a thread costs more than it gives.
inline constexpr std::int64_t parallel_work = 1 << 21;

// The grain of parallel_for() over `n` equal parts that take `work` multiply-adds together.
std::int64_t grain(std::int64_t n, std::int64_t work);

// Whether multiply_one() uses no tiles, and whether it then packs all of op(A).
bool on_vectors(const GemmKernels& kernels, const Gemm& g);
bool packs_rows_of_a(const GemmKernels& kernels, const Gemm& g);

// Whether C is nothing but a product of small matrices of one type, for GemmKernels::small.
bool is_small(const GemmKernels& kernels, const Gemm& g);

// The caller has checked the arguments; g.batch is 1, and no size but k is 0.
void multiply_one(const GemmKernels& kernels, const Gemm& g);

}  // namespace mezzo::cpu
