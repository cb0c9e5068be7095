// One matrix product on given kernels, cut into blocks for caches and threads.
#pragma once

#include "cpu/isa_tables.h"

namespace mezzo::cpu {

// Multiply-adds below which waking a thread costs more than it gives.
inline constexpr std::int64_t parallel_work = 1 << 21;

// How much of a loop over `n` equal parts of `work` multiply-adds in all a thread takes at least.
std::int64_t grain(std::int64_t n, std::int64_t work);

// g.batch == 1, arguments checked, no size but k is 0.
void multiply_one(const GemmKernels& kernels, const Gemm& g);

}  // namespace mezzo::cpu
