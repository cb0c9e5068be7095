// Groups on emulated devices, over the stand-in for NCCL: calls on tensors.
#include <catch2/catch.hpp>

#include "mezzo/capture.h"
#include "tests/cuda/nccl_alone.h"
#include "tests/distributed/device_groups.h"
#include "tests/distributed/training.h"

using namespace mezzo;
using namespace mezzo::test;
using Catch::Matchers::Contains;
using distributed::Group;
using distributed::ReduceOp;

namespace {

Tensor values(int rank, const Shape& shape, Dtype dtype) {
    std::int64_t count = 1;
    for (const std::int64_t n : shape) count *= n;
    return tensor_of(random_values(count, std::uint64_t(rank + 1), Domain::any), shape, dtype);
}

// Results of every collective call on one rank, in host memory.
Snapshot all_calls(const Group& group, Device device) {
    Snapshot results;
    const auto keep = [&](const std::string& name, const Tensor& x) {
        results.emplace_back(name, doubles(x));
    };
    for (const Dtype dtype : {float32, float64, float16, bfloat16, int64, int32, uint8}) {
        const std::string type = name(dtype);
        for (const ReduceOp op : {ReduceOp::sum, ReduceOp::mean, ReduceOp::min, ReduceOp::max}) {
            if (op == ReduceOp::mean && !is_floating(dtype)) continue;
            const Tensor x = values(group.rank(), {3, 37}, dtype).to(device);
            group.all_reduce_(x, op);
            keep(type + " " + distributed::name(op), x);
        }
        const Tensor x = values(group.rank(), {5, 7}, dtype).to(device);
        keep(type + " gathered", group.all_gather(x.transpose(0, 1)));
        group.broadcast_(x, group.size() - 1);
        keep(type + " broadcast", x);
    }
    keep("mean", group.mean(values(group.rank(), {11}, int64).to(device)));
    const Tensor flags = values(group.rank(), {9}, uint8).to(boolean).to(device);
    group.all_reduce_(flags, ReduceOp::max);
    keep("flags", flags);
    const Tensor none = empty({0, 3}, {.device = device});
    group.all_reduce_(none);
    keep("none", group.all_gather(none));
    return results;
}

}  // namespace

// The library is opened once per process.
TEST_CASE("nccl: a library that is named and not there is an error on all ranks", "[distributed]") {
    if (emulation::nccl_was_opened()) {
        WARN("another case has opened the stand-in: skipped; run this file alone");
        return;
    }
    const Devices devices(2);
    setenv("MEZZO_NCCL", "/nowhere/libnccl.so.2", 1);
    run_ranks(2, [](const Group& group) {
        const Tensor x = ones({4}, {.device = group.device()});
        for (int attempt = 0; attempt < 2; ++attempt)
            RANK_CHECK_THROWS(group.all_reduce_(x),
                              "rank 0: NCCL cannot be opened: /nowhere/libnccl.so.2: cannot open");
        RANK_CHECK(doubles(x) == std::vector<double>(4, 1.0));
        group.barrier();  // the group goes on
    });
    setenv("MEZZO_NCCL", "off", 1);
    run_ranks(2, [](const Group& group) {
        const Tensor x = ones({4}, {.device = group.device()});
        group.all_reduce_(x);
        RANK_CHECK(doubles(x) == std::vector<double>(4, 2.0));
        RANK_CHECK(group.engine() == "threads");
    });
}

TEST_CASE("nccl: ranks that share a GPU go through host memory", "[distributed]") {
    const Devices devices(2);
    const Log log;
    run_ranks(3, [](const Group& group) {
        const Tensor x = full({4}, group.rank() + 1.0, {.device = group.device()});
        group.all_reduce_(x);
        RANK_CHECK(doubles(x) == std::vector<double>(4, 6.0));
        RANK_CHECK(group.engine() == "threads");
    });
    REQUIRE(log.lines.size() == 1);
    CHECK_THAT(log.lines[0], Contains("through host memory, by threads; ranks 0 and 2 share a GPU"));
}

TEST_CASE("nccl: the log has a line when tensors lie on another device than the rank's", "[distributed]") {
    const Devices devices(3);
    const Log log;
    run_ranks(2, [](const Group& group) {
        const Device elsewhere = group.rank() == 0 ? group.device() : Device(DeviceType::cuda, 2);
        for (int call = 0; call < 2; ++call) {
            const Tensor x = full({4}, group.rank() + 1.0, {.device = elsewhere});
            group.all_reduce_(x);
            RANK_CHECK(doubles(x) == std::vector<double>(4, 3.0));
        }
        nn::Sequential net = make_mlp(5);
        net.to(elsewhere);
        distributed::DataParallel parallel(net, group);
        sum(net.parameters()[0]).backward();
        static_cast<void>(net.parameters()[0].grad());
    });
    REQUIRE(log.lines.size() == 1);
    CHECK_THAT(log.lines[0],
               Contains("rank 1: tensors on cuda:2 travel through host memory; only those on cuda:1"));
}

TEST_CASE("nccl: a call in a captured step", "[distributed]") {
    const Devices devices(2);
    run_ranks(2, [](const Group& group) {
        const Device device = group.device();
        const Tensor total = zeros({4}, {.device = device});
        cuda::CapturedStep step(
            [&](const Tensors& in) {
                const Tensor x = in[0] * 2.0;
                group.all_reduce_(x);
                total.add_(group.mean(x));
                group.broadcast_(x, 1);
                return Tensors{x + sum(group.all_gather(in[0]), {0})};
            },
            {.warmup = 1, .device = device});
        for (int call = 0; call < 5; ++call) {
            const Tensor x = full({4}, group.rank() + 10.0 * call, {.device = device});
            const Tensor y = step({x})[0];
            RANK_CHECK(doubles(y)[3] == 3.0 * (20 * call + 1));
        }
        RANK_CHECK(doubles(total)[0] == 2.0 * (20 * 10 + 5));
        RANK_CHECK(step.statistics().replays == 3);
        cuda::CapturedStep asks(
            [&](const Tensors& in) {
                group.barrier();
                return in;
            },
            {.warmup = 1, .device = device});
        const Tensor x = ones({2}, {.device = device});
        asks({x});
        RANK_CHECK_THROWS(asks({x}), "Group: a captured step cannot ask other processes");
    });
    CHECK(emulation::nccl_report().violations == "");
}

TEST_CASE("nccl: what goes through host memory is refused in a captured step", "[distributed]") {
    const Devices devices(2);
    setenv("MEZZO_NCCL", "off", 1);
    run_ranks(2, [](const Group& group) {
        const Tensor x = ones({2}, {.device = group.device()});
        cuda::CapturedStep step(
            [&](const Tensors& in) {
                group.all_reduce_(x);
                return in;
            },
            {.warmup = 1, .device = group.device()});
        step({x});
        RANK_CHECK_THROWS(step({x}), "all_reduce_: only tensors that travel by NCCL can be exchanged");
    });
}

TEST_CASE("nccl: tensors on devices give what tensors in host memory give", "[distributed]") {
    for (const int ranks : {2, 3})
        for (const Timing& timing : timings) {
            CAPTURE(ranks, timing.late_work, timing.early_communication);
            const Devices devices(ranks);
            set_timing(timing);
            std::vector<Snapshot> device, host;
            device.resize(std::size_t(ranks));
            host.resize(std::size_t(ranks));
            run_ranks(ranks, [&](const Group& group) {
                host[std::size_t(group.rank())] = all_calls(group, cpu_device);
                RANK_CHECK(group.engine() == "threads");
                device[std::size_t(group.rank())] = all_calls(group, group.device());
                RANK_CHECK(group.engine() == "NCCL 2.28.9");
            });
            for (int rank = 0; rank < ranks; ++rank) {
                // A mean multiplies before it adds on devices, and after it in host memory.
                CHECK(largest_difference(host[std::size_t(rank)], device[std::size_t(rank)]) <
                      (ranks == 2 ? 1e-30 : 1e-2));
                CHECK(first_difference(device[0], device[std::size_t(rank)]) == "");
            }
            CHECK(emulation::nccl_report().violations == "");
            CHECK(emulation::nccl_report().communicators == 0);
            CHECK(emulation::nccl_report().operations > 40);
        }
}

TEST_CASE("nccl: one rank over the stand-in does what it is to do on a GPU", "[distributed]") {
    for (const Timing& timing : timings) {
        CAPTURE(timing.late_work, timing.early_communication);
        const Devices devices(1);
        set_timing(timing);
        check_nccl_alone();
        CHECK(emulation::nccl_report().violations == "");
    }
}
