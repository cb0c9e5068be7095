// What an engine of collective operations can do: Gloo, threads of one process in tests.
#pragma once

#include <cstddef>
#include <cstdint>

#include "mezzo/distributed.h"
#include "mezzo/dtype.h"

namespace mezzo::distributed {

// Operations on host memory. All ranks call the same operations in the same order, each from one thread at a time. Calls block until the
// result is there; they throw Error(backend), after which the engine is dead.
class Collectives {
public:
    virtual ~Collectives() = default;
    // float32, float64, int64 and uint8; the mean of the floating ones only: the sum times 1 / size. The same bits on all ranks.
    virtual void all_reduce(void* data, std::int64_t count, Dtype dtype, ReduceOp op) = 0;
    // `bytes` are those of one rank; `all` holds one piece per rank.
    virtual void all_gather(const void* mine, void* all, std::size_t bytes) = 0;
    // `bytes` per pair of ranks: piece r of `sent` goes to rank r, which finds it as the sender's piece of `received`.
    virtual void all_to_all(const void* sent, void* received, std::size_t bytes) = 0;
    virtual void broadcast(void* data, std::size_t bytes, int root) = 0;
    virtual const char* name() const { return "an engine of its own"; }
    // From any thread, at any time: present and future calls throw soon.
    virtual void abort() noexcept = 0;
};

}  // namespace mezzo::distributed
