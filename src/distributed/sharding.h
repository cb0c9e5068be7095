// ZeRO-1: shards an optimizer's state and master weights, so that each rank has them for its part of every
// parameter only.
#pragma once

#include "distributed/partition.h"
#include "mezzo/distributed/data_parallel.h"
#include "optim/optimizer.h"

namespace mezzo::distributed {

// The optimizer's connection to the other ranks.
class Sharding final : public optim::ShardedState {
public:
    // `reducer` reduces the gradients of all parameters.
    Sharding(const Group& group, const GradientHook* reducer, const Partition& partition)
        : group_(group), reducer_(reducer), partition_(partition) {}

    void begin_update(const optim::OptimizerImpl& optimizer, const std::vector<std::size_t>& indices,
                      const std::exception_ptr& error) override;
    void give_up() noexcept override;
    void complete(const std::vector<optim::PartialTensor>& tensors) override;
    void agree_to_load(const std::string& where, const std::exception_ptr& error,
                       std::uint64_t digest) override;

private:
    const Group group_;
    const GradientHook* const reducer_;  // for comparisons only: it may have been destroyed
    const Partition partition_;
};

}  // namespace mezzo::distributed
