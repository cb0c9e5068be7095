// Detects the last block of a launch: it sees the writes of all others, and can finish their work without a
// second launch.
#pragma once

#include <optional>

#include "cuda/elementwise/elements.cuh"

namespace mezzo::cuda {

// True in every thread of the last of `count` blocks that call with this ticket, which then sees all writes
// of the others. The ticket is 0 before the first call and after the last. All threads call it.
__device__ inline bool last_of(unsigned* ticket, unsigned count) {
    MEZZO_SHARED(unsigned, last, [1]);
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        last[0] = atomicAdd(ticket, 1u) == count - 1 ? 1u : 0u;
        __threadfence();
        if (last[0] != 0) atomicExch(ticket, 0u);
    }
    __syncthreads();
    return last[0] != 0;
}

// Tickets for one launch on the current stream, all 0. Launches on a stream run one after the other, and each
// leaves the tickets as it found them, so that they may share them.
class Tickets {
public:
    explicit Tickets(int count);
    unsigned* get() const { return tickets_; }

private:
    std::optional<Scratch> own_;  // of a launch that needs more than the shared tickets
    unsigned* tickets_;
};

}  // namespace mezzo::cuda
