// Exchanges a record of fixed size between all ranks at the start of every collective call. If the records
// differ, all ranks throw the same error before any element is sent.
#pragma once

#include <cstdint>
#include <vector>

#include "distributed/group_impl.h"
#include "mezzo/distributed/group.h"

namespace mezzo::distributed {

enum class Call : std::uint8_t {
    all_reduce,
    all_gather,
    broadcast,
    mean,
    weight,
    barrier,
    all,
    any,
    // of DataParallel
    model,   // the constructor's comparison
    layout,  // the layout of the buckets
    values,  // broadcast of rank 0's values
    bucket,  // gradients
    // of a sharded optimizer
    shard,   // its state is sharded
    update,  // a step begins
    parts,   // all-gather of the shards
    load,    // a state has been read
    // of a synchronised batch norm
    moments,
    moments_grad,
    same,  // require_same
    // of a captured step
    step,  // what a call of a captured step does
};

// Describes the call that a rank is about to make.
struct Record {
    Call call;
    Dtype dtype = float32;
    ReduceOp op = ReduceOp::sum;
    // The argument of all() and any(). For a sharded optimizer's calls: whether this rank can do its part.
    // For calls with tensors and for `layout`: whether they are on the device of the rank's device engine.
    bool flag = false;
    std::int32_t root = 0;  // of a bucket: its index
    // For weight, model, layout, load, moments and step: a number that may differ between ranks.
    std::int64_t elements = 0;
    std::uint64_t shape = 0;   // a hash; for a bucket: the number of its DataParallel
    std::uint64_t ticket = 0;  // set by agree()
    // Of a bucket: a digest of which parameters have LeafState that is reduced, 0 for none; ranks may differ.
    std::uint64_t states = 0;
};
static_assert(sizeof(Record) == 40);

// Returns the records of all ranks. Runs on the communication thread. Throws the same error on all ranks
// unless all records describe the same call.
std::vector<Record> agree(Collectives& engine, const GroupImpl& group, Record mine);

// Calls agree() on the communication thread, for a call that sends no other data.
std::vector<Record> exchange(GroupImpl& group, const Record& mine);

}  // namespace mezzo::distributed
