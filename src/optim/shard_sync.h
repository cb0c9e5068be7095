// Interface of an optimizer to ZeRO-1 sharding, which divides the optimizer's state among several processes.
// src/distributed/sharding.cpp implements it.
#pragma once

#include <cstdint>
#include <exception>
#include <vector>

#include "kernels/step.h"
#include "mezzo/tensor.h"

namespace mezzo::optim {

struct OptimizerImpl;
struct GradientList;

// Local shard of a parameter: consecutive elements.
struct LocalShard {
    std::int64_t begin = 0, count = 0;
};

// Partial tensor: it has the shape of a parameter's tensor, but this process has the right values in its
// shard only.
struct PartialTensor {
    std::size_t slot;
    Tensor tensor;  // contiguous
    // So many elements of the parameter are so many of the tensor, which divides at multiples of them.
    std::int64_t elements = 1, stored = 1;
};

// Synchronises sharded updates with the other processes. Calls are collective: all processes make the same
// ones in the same order.
class ShardedState {
public:
    virtual ~ShardedState() = default;
    // Begins an update of the parameters with these indices. Throws on all processes unless all update the
    // same ones and none passes an `error`; no parameter has changed then. A process that passes an error
    // gets it thrown, and its indices are not read.
    virtual void begin_update(const OptimizerImpl& optimizer, const std::vector<std::size_t>& indices,
                              const std::exception_ptr& error) = 0;
    // Called if an update that has begun fails on this process, while the exception is being handled. Aborts,
    // so that the other processes do not go on without it.
    virtual void give_up() noexcept = 0;
    // All-gathers the shards of partial tensors, so that every process has all elements.
    virtual void complete(const std::vector<PartialTensor>& tensors) = 0;
    // Returns if loading succeeds on all processes with the same digest. Throws `error` if there is one,
    // otherwise an error with the reason of the other processes. where: "Adam.load_state_dict".
    virtual void agree_to_load(const std::string& where, const std::exception_ptr& error,
                               std::uint64_t digest) = 0;
};

// The references of a plan, narrowed to this process's shards. They write no copies for autocast.
std::vector<ParamRef> own_parts(const OptimizerImpl& optimizer, const GradientList& plan);
// Called after the update of this process's shards: gathers the others', and updates the copies for autocast.
void complete_update(const OptimizerImpl& optimizer, const GradientList& plan);

}  // namespace mezzo::optim
