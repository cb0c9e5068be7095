// Sharded optimizers whose gradients travel by NCCL, over its stand-in, compared bit for bit with optimizers
// that are not sharded.
#include <catch2/catch.hpp>

#include "cuda/runtime/runtime.h"
#include "tests/distributed/device_groups.h"
#include "tests/distributed/sharded_training.h"

using namespace mezzo;
using namespace mezzo::test;
using distributed::Group;

namespace {

// Device of the rank, after a check that its tensors travel by NCCL.
Device own_device(const Group& group) {
    const Tensor x = ones({1}, {.device = group.device()});
    group.all_reduce_(x);
    RANK_CHECK(group.engine() == "NCCL 2.28.9");
    return group.device();
}

void check_same(const ShardedWay& way, int ranks) {
    CAPTURE(way.name, ranks);
    const Devices devices(ranks);
    const Snapshot plain = train_sharded(way, ranks, false, own_device)[0];
    CHECK(plain.back().second[0] == (way.scaled ? 1 : 0));
    for (const Timing& timing : timings) {
        CAPTURE(timing.late_work, timing.early_communication);
        set_timing(timing);
        for (const Snapshot& rank : train_sharded(way, ranks, true, own_device))
            CHECK(first_difference(rank, plain) == "");
    }
    CHECK(emulation::nccl_report().violations == "");
    CHECK(emulation::nccl_report().communicators == 0);
}

}  // namespace

TEST_CASE("nccl sharding: the bits of the optimizer that is not sharded", "[distributed]") {
    for (const int ranks : {2, 3})
        for (const ShardedWay& way :
             {ShardedWay{.name = "SGD", .make = momentum}, ShardedWay{.name = "groups", .make = grouped()},
              ShardedWay{.name = "AdamW, clipped", .make = adamw, .clip = true}})
            check_same(way, ranks);
}

TEST_CASE("nccl sharding: mixed precision, with an overflow in one shard", "[distributed]") {
    for (const int ranks : {2, 3})
        for (const ShardedWay& way : mixed_precision_ways()) check_same(way, ranks);
}

TEST_CASE("nccl sharding: a step waits for no device, and gathers the parameters by NCCL", "[distributed]") {
    const Devices devices(2);
    std::uint64_t waits = 0, operations[2] = {};
    for (const bool sharded : {false, true})
        run_ranks(2, [&](const Group& group) {
            const ShardedWay way{.name = "AdamW", .make = adamw};
            ShardedTraining training(way, group.rank(), own_device(group));
            distributed::DataParallel parallel(training.net, group);
            if (sharded) shard(*training.optimizer, parallel);
            for (int step = 0; step < 3; ++step) training.step(step, group);
            group.barrier();
            const std::uint64_t waits_before = cuda::counters().host_syncs,
                                operations_before = emulation::nccl_report().operations;
            group.barrier();
            for (int step = 3; step < 6; ++step) training.step(step, group);
            group.barrier();
            if (group.rank() == 0) {
                waits += cuda::counters().host_syncs - waits_before;
                operations[int(sharded)] = emulation::nccl_report().operations - operations_before;
            }
            group.barrier();
        });
    CHECK(waits == 0);
    CHECK(operations[1] == operations[0] + 3);  // one message a step
}
