// Data-parallel training: each rank computes the gradients of its own part of the batch, the ranks average
// them, and every rank applies the mean.
//
//   distributed::DataParallel parallel(net, group);
//   distributed::shard(optimizer, parallel);  // ZeRO stage 1, if wanted
//   loss.backward();                          // reduces the first buckets while it runs
//   optimizer.step();                         // waits for all of them
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mezzo/distributed/group.h"
#include "mezzo/module.h"

#pragma GCC visibility push(default)

namespace mezzo::optim {
class Optimizer;
}

namespace mezzo::distributed {

class [[gnu::visibility("hidden")]] Reducer;  // src/distributed/reducer.h

// Treatment of a parameter that gets no gradient in a backward pass of this rank.
enum class Unused : std::uint8_t {
    zero,  // counts as 0 if other ranks have a gradient; if no rank has one, grad() is unchanged
    fail,  // throws Error(state) with the parameter's name
};

struct DataParallelOptions {
    // Largest sizes of a bucket of gradients. Buckets are reduced in the order in which backward finishes
    // their gradients; the first one is small so that communication starts early. A gradient that is larger
    // than a bucket gets its own. The default of bucket_bytes is reduced to an eighth of all gradients, but
    // not below first_bucket_bytes.
    std::int64_t first_bucket_bytes = 1 << 20;
    std::int64_t bucket_bytes = 25 << 20;
    // Dtype in which float32 gradients are sent: float32, or float16 or bfloat16 for half the bytes. 16-bit
    // gradients are divided by the number of ranks and rounded, added in float32 in rank order, and rounded
    // again. Gradients of other dtypes are sent in their own dtype.
    Dtype wire = float32;
    // Adds float32 gradients in rank order with every engine: N ranks then give the same bits as one process
    // that accumulates N gradients. Needs memory for a second bucket.
    bool ordered = false;
    bool overlap = true;               // reduce buckets while backward runs, not at its end
    bool gradients_in_buckets = true;  // gradients are views of the buckets: no copies, no second buffer
    Unused unused = Unused::zero;
    // Number of reductions between two comparisons of the ranks' parameters, bit for bit, as by
    // require_same() (mezzo/distributed/state.h). 0: the value of the environment variable
    // MEZZO_DISTRIBUTED_CHECK, or never. Replays of captured steps do not compare.
    int check_interval = 0;
};

// Averages the gradients of a module's parameters over the ranks of a group, for as long as the object lives.
// The module is not wrapped: it is called, listed and saved as without DataParallel.
//
// Every reader of a gradient waits for its reduction: grad(), optimizers, GradScaler, clip_grad_norm_().
// Therefore all ranks see the same gradients, bit for bit, and skip the same steps. The ranks exchange
// nothing else; weights stay equal if all ranks have processors of the same kind.
//
// All ranks must call backward() on the same kind of loss equally often. A backward pass that reaches no
// parameter of the module is not reduced. Each rank's loss must be a mean over its rows, and all ranks must
// have equally many rows; otherwise multiply the loss by Group::weight(). autograd::grad() is local.
// backward() throws Error(state)
//  - with create_graph: gradients with a history cannot be reduced;
//  - inside a captured step, unless the gradients of all ranks are on CUDA devices and are reduced by NCCL
//    (Group::engine()). All ranks must then call their captured steps in the same order; the same calls are
//    captured and replayed on all of them;
//  - if a parameter gets a gradient after its bucket was sent. This happens only if a checkpointed segment
//    changes from one step to the next; overlap = false allows it.
// If backward throws on one rank, the group is broken: the other ranks' calls throw Error(backend).
//
// In a group of one rank no hooks are installed, and every function returns at once.
class DataParallel {
public:
    // Compares the modules' parameters and buffers (names, shapes, dtypes, requires_grad) and the options of
    // all ranks, then broadcasts the values of rank 0. Collective. Throws Error(value) on all ranks with the
    // first difference; also for options out of range, and for a parameter that belongs to another
    // DataParallel.
    DataParallel(const nn::Module& module, const Group& group, const DataParallelOptions& options = {});
    // Waits for running reductions. During stack unwinding it drops their gradients instead of waiting.
    ~DataParallel();
    DataParallel(const DataParallel&) = delete;
    DataParallel& operator=(const DataParallel&) = delete;

    // Scope for gradient accumulation (PyTorch's no_sync()): inside it, backward() adds to this rank's
    // gradients and reduces nothing. The sum is reduced by the first of: backward() outside of the scope,
    // reduce(), step(), unscale_(), clipping. Until then grad() is this rank's own.
    //
    //     for (int i = 0; i < passes; ++i) {
    //         const distributed::DataParallel::Local here(parallel);
    //         (loss(i) / passes).backward();
    //     }
    //     optimizer.step();    // reduces once
    //
    // Without the scope each backward() reduces the whole sum again. The result is the same but for rounding.
    // If gradients are sent in 16 bits, each pass rounds the sum to 16 bits, which loses gradients that are
    // small compared with the sum.
    class [[nodiscard]] Local {
    public:
        [[nodiscard]] explicit Local(DataParallel& parallel);
        ~Local();
        Local(const Local&) = delete;
        Local& operator=(const Local&) = delete;

    private:
        Reducer* reducer_;
    };

    // Replaces the gradients of all parameters by their means over the ranks, those of set_grad() included.
    // Collective.
    void reduce();
    // Broadcasts the buffers of rank 0, such as running statistics, for an evaluation or a checkpoint.
    // Collective.
    void broadcast_buffers();

    // The names of the parameters of each bucket, in the order in which buckets are reduced. Empty before the
    // first reduction.
    [[nodiscard]] std::vector<std::vector<std::string>> buckets() const;
    [[nodiscard]] const Group& group() const { return group_; }

private:
    friend void shard(optim::Optimizer& optimizer, const DataParallel& parallel);

    Group group_;
    StateDict buffers_;
    Reducer* reducer_ = nullptr;  // owns a reference; null in a group of one rank
};

// Shards the optimizer's state over the ranks: ZeRO stage 1 (Rajbhandari et al., arXiv 1910.02054). Each rank
// holds the state (moments, and master weights of 16-bit parameters) of 1 / size() of all elements and
// updates only those; step() then all-gathers the parameters. Results have the same bits as without sharding.
// Gradients stay averaged and whole on every rank, so grad(), clipping, GradScaler and accumulation work
// unchanged.
//
// Collective; afterwards step(), GradScaler::step(), state_dict() and load_state_dict() are collective, too.
// state_dict() returns the unsharded state on all ranks, with moments and master weights in host memory; any
// number of ranks can load it. load_state_dict() needs the same state on all ranks; if one rank cannot load
// it, it throws on all ranks and changes nothing. master_parameters() throws Error(state) if there are master
// weights. State that the optimizer already has is divided. The DataParallel must outlive the steps;
// otherwise they throw Error(state). If a rank is lost during step(), some parameters of the other ranks may
// be updated and others not.
//
// Throws on all ranks and changes nothing: Error(value) for a parameter whose gradient `parallel` does not
// average, and for an optimizer written in ops (mezzo/custom_optimizer.h), whose update needs whole
// parameters; Error(state) for an optimizer that is sharded already, and in a captured step. In a group of
// one rank nothing changes.
void shard(optim::Optimizer& optimizer, const DataParallel& parallel);

}  // namespace mezzo::distributed

#pragma GCC visibility pop
