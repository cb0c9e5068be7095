// ZeRO-1: shards an optimizer's state and master weights, so that each rank has them for its part of every
// parameter only.
#include <algorithm>
#include <exception>

#include "core/fnv1a.h"
#include "core/live_error.h"
#include "core/step_recorder.h"
#include "distributed/call_record.h"
#include "distributed/gather_shards.h"
#include "distributed/partition.h"
#include "distributed/reducer.h"
#include "mezzo/distributed/data_parallel.h"
#include "mezzo/ops.h"
#include "optim/optimizer.h"

namespace mezzo::distributed {

namespace {

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

std::uint64_t hash_of(const std::vector<std::size_t>& numbers) {
    Fnv1a hash;
    for (const std::size_t n : numbers) hash.add(std::uint64_t(n));
    return hash.value();
}

const GradientHook* reducer_of(const Tensor& parameter) {
    return parameter->grads().gradient.find<Reducer>().hook.get();
}

// Returns the indices of the parameters that an update would change.
std::vector<std::size_t> with_gradients(const optim::OptimizerImpl& optimizer) {
    std::vector<std::size_t> indices;
    for (std::size_t i = 0; i < optimizer.slots.size(); ++i)
        if (optimizer.slots[i].param->grads().gradient.defined() && optimizer.slots[i].param.numel() != 0)
            indices.push_back(i);
    return indices;
}

// Exchanges whether every rank has succeeded so far. Throws this rank's `error`, or "`who`: rank R `failure`"
// if another rank has failed.
std::vector<Record> succeed_together(const Record& record, const std::exception_ptr& error,
                                     const std::string& who, const char* failure, GroupImpl& group) {
    Record mine = record;
    mine.flag = error == nullptr;
    std::vector<Record> all;
    try {
        all = exchange(group, mine);
    } catch (...) {
        if (!error) throw;  // otherwise this rank's own error is the cause
    }
    if (error) std::rethrow_exception(error);
    if (std::any_of(all.begin(), all.end(), [](const Record& r) { return !r.flag; }))
        group.heard_of_failure();
    for (std::size_t rank = 0; rank < all.size(); ++rank)
        check(all[rank].flag, ErrorKind::state, who, ": rank ", rank, " ", failure,
              "; nothing has changed on any rank");
    return all;
}

void check_shardable(const optim::OptimizerImpl& optimizer, const GradientHook* reducer) {
    refuse_in_capture("shard", "divide an optimizer's state");
    check(optimizer.sharing == nullptr, ErrorKind::state, "shard: this ", optimizer.type,
          " is sharded already; call shard() once");
    for (std::size_t i = 0; i < optimizer.slots.size(); ++i) {
        const GradientHook* const hook = reducer_of(optimizer.slots[i].param);
        if (hook == reducer) continue;
        fail(ErrorKind::value, "shard: ", optimizer.describe(i), " of this ", optimizer.type, " belongs to ",
             hook == nullptr ? "no" : "another",
             " DataParallel; pass the DataParallel of the module whose parameters it updates");
    }
}

std::vector<std::size_t> sizes_of(const optim::OptimizerImpl& optimizer) {
    std::vector<std::size_t> sizes;
    for (const char c : std::string(optimizer.type)) sizes.push_back(std::size_t(c));
    for (const optim::Slot& slot : optimizer.slots) sizes.push_back(std::size_t(slot.param.numel()));
    return sizes;
}

// Returns the slots with this rank's shards of their state.
std::vector<optim::Slot> divided(const optim::OptimizerImpl& optimizer, const Partition& partition,
                                 int rank) {
    const NoGrad plain;
    std::vector<optim::Slot> slots = optimizer.slots;
    for (std::size_t i = 0; i < slots.size(); ++i) {
        optim::Slot& slot = slots[i];
        slot.part = partition.part(i, rank);
        for (Tensor& state : slot.state)
            if (state.defined()) state = slot.kept_state(state).clone();
        if (slot.master.defined()) slot.master = slot.kept_part(slot.master.detach()).clone();
        if (slot.low16.defined()) slot.low16 = slot.kept_rows(slot.low16, 1).clone();
    }
    return slots;
}

}  // namespace

void shard(optim::Optimizer& optimizer, const DataParallel& parallel) {
    optim::OptimizerImpl& own = optimizer.impl();
    check(own.user == nullptr, ErrorKind::value, "shard: ", own.type,
          " is an optimizer written in ops, whose update() sees whole parameters, such as their norms; the "
          "optimizers of mezzo/optim.h can be sharded");
    if (parallel.reducer_ == nullptr) return;
    const Group& group = parallel.group();
    std::exception_ptr error;
    std::vector<optim::Slot> slots;
    std::unique_ptr<Sharding> sharding;
    try {
        check_shardable(own, parallel.reducer_);
        std::vector<std::int64_t> numels;
        for (const optim::Slot& slot : own.slots) numels.push_back(slot.param.numel());
        const Partition partition(numels, group.size());
        slots = divided(own, partition, group.rank());
        sharding = std::make_unique<Sharding>(group, parallel.reducer_, partition);
    } catch (...) {
        error = std::current_exception();
    }
    const Record record{
        .call = Call::shard, .elements = std::int64_t(own.slots.size()), .shape = hash_of(sizes_of(own))};
    succeed_together(record, error, "shard", "could not shard its optimizer", group.impl());
    own.slots = std::move(slots);
    own.sharing = std::move(sharding);
}

void Sharding::begin_update(const optim::OptimizerImpl& optimizer, const std::vector<std::size_t>& indices,
                            const std::exception_ptr& before) {
    std::exception_ptr error = before;
    if (!error) try {
            for (std::size_t i = 0; i < optimizer.slots.size(); ++i)
                if (reducer_of(optimizer.slots[i].param) != reducer_)
                    fail(ErrorKind::state, optimizer.type, ": nobody averages the gradient of ",
                         optimizer.describe(i),
                         "; the DataParallel that was given to shard() must live as long as steps are taken");
        } catch (...) {
            error = std::current_exception();
        }
    const std::vector<std::size_t> updated = before ? with_gradients(optimizer) : indices;
    const Record record{
        .call = Call::update, .elements = std::int64_t(updated.size()), .shape = hash_of(updated)};
    succeed_together(record, error, optimizer.type, "could not begin its step", group_.impl());
}

void Sharding::give_up() noexcept {
    try {
        const std::string words = live_error();
        group_.impl().give_up(words.empty() ? "an exception ended its sharded optimizer's step" : words);
    } catch (...) {  // without memory for the message, other ranks wait until their timeout
    }
}

void Sharding::complete(const std::vector<optim::PartialTensor>& tensors) {
    gather_parts(tensors, partition_, group_);
}

void Sharding::agree_to_load(const std::string& where, const std::exception_ptr& error,
                             std::uint64_t digest) {
    const std::vector<Record> all = succeed_together({.call = Call::load, .elements = std::int64_t(digest)},
                                                     error, where, "could not load its state", group_.impl());
    for (std::size_t rank = 1; rank < all.size(); ++rank)
        check(all[rank].elements == all[0].elements, ErrorKind::value, where, ": rank ", rank,
              " was given another state than rank 0; nothing has changed on any rank");
}

}  // namespace mezzo::distributed
