// What the stand-in for cuBLASLt does when its functions have understood a call.
#pragma once

#include <cstdint>

#include "cuda/gemm/lt.h"

namespace mezzo::emulation {

// How many algorithms it proposes. Those beyond are the hidden ones.
inline constexpr int candidate_count = 3;
bool exists(std::uint64_t number);

// Moves the emulated clock by a run of an algorithm.
void pass_time(const cuda::lt::Problem& p, int number);

// Enqueues the product by the algorithm, with all that may be wrong with it. The algorithm uses as much of
// the workspace as it asks for.
void multiply(const cuda::lt::Problem& p, const cuda::lt::Operands& o, const cuda::lt::Algo& algo);

}  // namespace mezzo::emulation
