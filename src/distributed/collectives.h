// Interface of an engine of collective operations. Implementations: Gloo, shared memory, and threads of one
// process in tests.
#pragma once

#include <cstddef>
#include <cstdint>

#include "mezzo/distributed/group.h"
#include "mezzo/dtype.h"

namespace mezzo::distributed {

// Rank of a process among all processes of its program, and among those of its machine.
struct RankInfo {
    int rank = 0, size = 1;              // among all
    int local_rank = 0, local_size = 1;  // among those of this machine
};

// Collective operations on host memory. All ranks call the same operations in the same order, each rank from
// one thread at a time. Calls block until the result is there. They throw Error(backend), after which the
// engine cannot be used.
class Collectives {
public:
    virtual ~Collectives() = default;
    // For float32, float64, int64 and uint8; a mean, for floating dtypes only, is the sum times 1 / size. All
    // ranks get the same bits.
    virtual void all_reduce(void* data, std::int64_t count, Dtype dtype, ReduceOp op) = 0;
    // `bytes` is the size of one rank's piece; `all` holds one piece per rank.
    virtual void all_gather(const void* mine, void* all, std::size_t bytes) = 0;
    // `bytes` is the size of one piece. Piece r of `sent` goes to rank r, which finds it in `received` at the
    // index of the sender.
    virtual void all_to_all(const void* sent, void* received, std::size_t bytes) = 0;
    virtual void broadcast(void* data, std::size_t bytes, int root) = 0;
    virtual const char* name() const { return "an engine of its own"; }
    // May be called from any thread at any time: calls in progress and later ones throw soon.
    virtual void abort() noexcept = 0;
};

}  // namespace mezzo::distributed
