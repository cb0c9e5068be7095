// Data-parallel training: every rank of a group computes the gradients of its own part of the batch, and all update with their mean.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mezzo/distributed.h"
#include "mezzo/module.h"

#pragma GCC visibility push(default)

namespace mezzo::optim {
class Optimizer;
}

namespace mezzo::distributed {

class [[gnu::visibility("hidden")]] Reducer;  // src/distributed/reducer.h

// What happens to a parameter that gets no gradient from a backward pass of this rank.
enum class Unused : std::uint8_t {
    zero,  // it counts as 0 where other ranks have a gradient; without any, grad() stays as it is
    fail,  // Error(state) with its name
};

struct DataParallelOptions {
    // Gradients travel in buckets of at most so many bytes, in the order in which backward finishes them. The first bucket is small, so that the
    // first message leaves early. A larger gradient is a bucket of its own. The default is an eighth of all gradients where that is less.
    std::int64_t first_bucket_bytes = 1 << 20;
    std::int64_t bucket_bytes = 25 << 20;
    // float32; or float16 or bfloat16, in which float32 gradients then travel: half the bytes. They are divided by the number of ranks and
    // rounded, added in float32 in the order of the ranks, and rounded once more. Gradients of other dtypes travel as they are.
    Dtype wire = float32;
    // float32 gradients are added in the order of the ranks, whatever the engine: N ranks then give the bits of one process that adds N gradients one
    // after the other. It takes memory for a second bucket.
    bool ordered = false;
    bool overlap = true;  // buckets leave while backward runs, not at its end
    bool gradients_in_buckets =
        true;  // gradients are made where they travel from: no copies, and no second memory
    Unused unused = Unused::zero;
    // Every so many reductions the ranks first compare their parameters bit for bit, as require_same() does (mezzo/distributed_state.h). 0: as the
    // variable MEZZO_DISTRIBUTED_CHECK says, or never. Replays of captured steps do not compare.
    int check_interval = 0;
};

// While it exists, gradients that backward adds to a module's parameters are averaged over the ranks of a group. The module itself is not changed: it is
// called, listed and saved as ever.
//
//     distributed::DataParallel parallel(net, group);
//     ...
//     loss.backward();     // buckets leave while it runs
//     optimizer.step();    // waits for them
//
// Everything that reads a gradient waits for its reduction: grad(), optimizers, GradScaler, clip_grad_norm_(). So all ranks see the same gradients,
// bit for bit, and skip the same steps; the ranks exchange nothing else. Weights stay the same on processors of the same kind.
//
// All ranks must call backward() on the same kind of loss equally often. A backward pass that reaches no parameter of the module takes no
// part. The loss of each rank is to be a mean over its rows, all ranks having as many; otherwise multiply it by Group::weight(). autograd::grad() is
// local. backward() throws Error(state)
//  - with create_graph: gradients with a history cannot be reduced;
//  - inside a captured step, unless the gradients of all ranks are on CUDA devices and travel by NCCL (Group::engine()). All ranks then call their
//    captured steps in the same order, and the same calls are captured and replayed on all of them;
//  - where a parameter gets a gradient after its bucket has left, which only happens where a checkpointed segment changes from one step to the next:
//    overlap = false allows that.
// When a rank's backward ends with an exception, the group breaks: the other ranks' calls throw Error(backend).
//
// In a group of one rank nothing is attached, and every function returns at once.
class DataParallel {
public:
    // Compares the modules' parameters and buffers (names, shapes, dtypes, requires_grad) and the options, then gives all ranks the values of rank
    // 0. Collective. Throws Error(value) on all ranks with the first difference; also for options out of range, and a parameter that another
    // DataParallel watches.
    DataParallel(const nn::Module& module, const Group& group, const DataParallelOptions& options = {});
    // Waits for reductions that are under way, unless an exception is passing through.
    ~DataParallel();
    DataParallel(const DataParallel&) = delete;
    DataParallel& operator=(const DataParallel&) = delete;

    // While one exists, backward() leaves its gradients on this rank, for accumulation over several backward passes. The next
    // backward() outside of it, reduce(), or what comes first of step(), unscale_() and clipping, reduces the sum. grad() is this rank's until then.
    //
    //     for (int i = 0; i < passes; ++i) {
    //         const distributed::DataParallel::Local here(parallel);
    //         (loss(i) / passes).backward();
    //     }
    //     optimizer.step();    // reduces once
    //
    // Without it each backward() reduces the whole sum again. That gives the same but for rounding; where gradients travel in 16 bits, each
    // pass rounds the sum to 16 bits, and what is small beside it is lost.
    class [[nodiscard]] Local {
    public:
        [[nodiscard]] explicit Local(DataParallel& parallel);
        ~Local();
        Local(const Local&) = delete;
        Local& operator=(const Local&) = delete;

    private:
        Reducer* reducer_;
    };

    // Replaces the gradients of all parameters by their means now, also those that set_grad() has put there. Collective.
    void reduce();
    // Gives all ranks the buffers of rank 0, such as running statistics: for an evaluation or a checkpoint. Collective.
    void broadcast_buffers();

    // The names of the parameters by bucket, in the order in which buckets leave. Empty before the first reduction.
    [[nodiscard]] std::vector<std::vector<std::string>> buckets() const;
    [[nodiscard]] const Group& group() const { return group_; }

private:
    friend void shard(optim::Optimizer& optimizer, const DataParallel& parallel);

    Group group_;
    StateDict buffers_;
    Reducer* reducer_ = nullptr;  // held by a reference; null in a group of one
};

// ZeRO, stage 1 (Rajbhandari et al., arXiv 1910.02054): from now on each rank keeps the optimizer's state - moments, and masters of 16-bit parameters - for
// 1 / size() of all elements, and updates those. step() then gives all ranks all parameters. The bits are those of the optimizer that is not sharded:
// gradients are averaged as before, and whole on every rank, so that grad(), clipping, GradScaler and accumulation know nothing of the division.
//
//     optim::AdamW optimizer(net.named_parameters());
//     distributed::DataParallel parallel(net, group);
//     distributed::shard(optimizer, parallel);
//
// Collective; so are from now on step(), GradScaler::step(), state_dict() and load_state_dict(). state_dict() is the one of an optimizer that is not
// sharded, on all ranks, with moments and masters in host memory; any number of ranks loads it. load_state_dict() is to be given the same state on all ranks, and
// where one of them cannot load it, it throws on all, and nothing changes. master_parameters() throws Error(state) where there are masters. State
// that the optimizer has already is divided. The DataParallel must live while steps are taken; otherwise they throw Error(state). Where a
// rank is lost in step(), the other ranks' parameters may be those before the step in some parts, and those after it in others.
//
// Throws on all ranks, with nothing changed: Error(value) for a parameter whose gradient `parallel` does not average; Error(state) for an optimizer that is
// sharded already, and in a captured step. Error(value) for an optimizer written in ops (mezzo/custom_optimizer.h), whose update sees whole
// parameters. In a group of one rank nothing changes.
void shard(optim::Optimizer& optimizer, const DataParallel& parallel);

}  // namespace mezzo::distributed

#pragma GCC visibility pop
