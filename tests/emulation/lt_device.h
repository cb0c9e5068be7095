// The parts of the stand-in for cuBLASLt: cublaslt.cpp checks calls, lt_product.cpp computes, and a device is
// below them, which is the emulated one (lt.cpp) or the PTX machine's (tests/ptx/cublaslt_stand_in.cpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "cuda/gemm/lt.h"

namespace mezzo::emulation {

// Number of algorithms that the heuristic proposes. Later numbers are those of fake_lt.hidden_ms.
inline constexpr int candidate_count = 3;
bool exists(std::uint64_t number);

// Enqueues the product by the algorithm, with the faults of fake_lt. The algorithm uses as much of the
// workspace as it asks for.
void multiply(const cuda::lt::Problem& p, const cuda::lt::Operands& o, const cuda::lt::Algo& algo,
              void* stream);

namespace lt_device {

// Whether the library can allocate so much device memory for itself.
bool has_memory(std::size_t bytes);
// Compute capability of the current device, times ten.
int capability();
// Whether products are checked and counted, but not computed, so that only the host's work is left.
bool is_idle();
// Enqueues work that accesses device memory. `name` is the work's name in traces; "" leaves it out of them.
void enqueue(void* stream, const std::string& name, const std::function<void()>& work);
// Records that work has written these bytes.
void mark_written(const void* from, std::size_t bytes);
// Advances the clock by a run of an algorithm.
void pass_time(const cuda::lt::Problem& p, int algorithm);
// Reports a call that would be a fault on a GPU, and throws.
[[noreturn]] void misuse(const std::string& what);

}  // namespace lt_device
}  // namespace mezzo::emulation
