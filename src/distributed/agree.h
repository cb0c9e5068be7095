// What every collective call begins with: a record of fixed size from every rank. Calls that differ are then an error on all ranks before any element
// travels, whatever the ranks disagree about.
#pragma once

#include <cstdint>
#include <vector>

#include "distributed/group_impl.h"
#include "mezzo/distributed.h"

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
    layout,  // the buckets are agreed upon
    values,  // rank 0's become everybody's
    bucket,  // gradients
    // of a sharded optimizer
    shard,   // its state is divided
    update,  // a step begins
    parts,   // everybody's parts of tensors
    load,    // a state has been read
    // of a synchronised batch norm
    moments,
    moments_grad,
    same,  // what the ranks hold is compared
    // of a captured step
    step,  // what a call of a captured step does
};

// What a rank is about to do.
struct Record {
    Call call;
    Dtype dtype = float32;
    ReduceOp op = ReduceOp::sum;
    // The argument of all() and any(); whether a rank can do its part; of tensors and layout: whether they are on the device of the rank's
    // device engine.
    bool flag = false;
    std::int32_t root = 0;  // of a bucket: its index
    // Of weight(), model, layout, load, moments and step: a number that may differ between ranks.
    std::int64_t elements = 0;
    std::uint64_t shape = 0;   // a hash; of a bucket: the number of its DataParallel
    std::uint64_t ticket = 0;  // agree() writes it
};
static_assert(sizeof(Record) == 32);

// For work on the communication thread: the records of all ranks. Throws the same error on all of them unless they describe the same call.
std::vector<Record> agree(Collectives& engine, const GroupImpl& group, Record mine);

// The same as work of its own, for a call in which nothing else travels.
std::vector<Record> exchange(GroupImpl& group, const Record& mine);

}  // namespace mezzo::distributed
