// Data-parallel training on emulated devices, over the stand-in for NCCL.
#include "tests/distributed/device_training.h"

using namespace mezzo;
using namespace mezzo::test;
using distributed::DataParallel;
using distributed::DataParallelOptions;
using distributed::Group;

TEST_CASE("nccl data parallel: ranks stay equal, and equal to those that go through host memory",
          "[distributed]") {
    for (const int ranks : {2, 3})
        for (const DataParallelOptions& options :
             {Recipe().options, DataParallelOptions{.first_bucket_bytes = 2000, .wire = bfloat16},
              DataParallelOptions{.ordered = true, .gradients_in_buckets = false}}) {
            CAPTURE(ranks, options.wire, options.ordered);
            const Devices devices(ranks);
            const Recipe recipe{.options = options};
            const std::vector<Trained> device = train(ranks, recipe),
                                       host = train_through_host(ranks, recipe);
            check_ranks(device);
            // With 3 ranks a mean in float32 multiplies by a rounded 1 / 3 before the sum on devices, and
            // after the sum in host memory.
            const bool same_sum = ranks == 2 || options.ordered || options.wire != float32;
            if (same_sum) CHECK(first_difference(device[0].state, host[0].state) == "");
            CHECK(largest_difference(device[0].state, host[0].state) < 1e-3);
        }
}

TEST_CASE("nccl data parallel: 16-bit gradients are added in the order of the ranks", "[distributed]") {
    for (const Dtype dtype : {bfloat16, float16}) {
        CAPTURE(dtype_info(dtype).name);
        const Devices devices(3);
        const Recipe recipe{.parameters = dtype};
        const std::vector<Trained> device = train(3, recipe), host = train_through_host(3, recipe);
        check_ranks(device);
        CHECK(first_difference(device[0].state, host[0].state) == "");
    }
}

TEST_CASE("nccl data parallel: float16 autocast, over an overflow on one rank", "[distributed]") {
    for (const int ranks : {2, 3, 4}) {
        CAPTURE(ranks);
        const Devices devices(ranks);
        const Recipe recipe{.options = {.first_bucket_bytes = 2000, .ordered = true}, .autocast = true};
        const std::vector<Trained> device = train(ranks, recipe), host = train_through_host(ranks, recipe);
        check_ranks(device);
        CHECK(first_difference(device[0].state, host[0].state) == "");
    }
}

TEST_CASE("nccl data parallel: a BERT in float16 autocast, over an overflow on one rank", "[distributed]") {
    for (const int ranks : {2, 3, 4}) {
        CAPTURE(ranks);
        const Devices devices(ranks);
        const Recipe recipe{.options = {.first_bucket_bytes = 2000, .bucket_bytes = 5000, .ordered = true},
                            .autocast = true,
                            .steps = 8};
        const std::vector<Trained> host = train_through_host<Bert>(ranks, recipe);
        for (const Timing& timing : {timings[0], timings[3]}) {
            CAPTURE(timing.late_work);
            const std::vector<Trained> device = train<Bert>(ranks, recipe, timing);
            check_ranks(device);
            CHECK(device[0].buckets > 2);
            CHECK(first_difference(device[0].state, host[0].state) == "");
        }
    }
}

TEST_CASE("nccl data parallel: overlap, buckets and gradients in them do not change a bit", "[distributed]") {
    const Devices devices(2);
    const std::vector<Trained> expected = train(2, {});
    for (const bool overlap : {false, true})
        for (const bool in_buckets : {false, true})
            for (const std::int64_t bytes : {1, 1 << 20}) {
                CAPTURE(overlap, in_buckets, bytes);
                const std::vector<Trained> other =
                    train(2, {.options = {.first_bucket_bytes = bytes,
                                          .bucket_bytes = bytes,
                                          .overlap = overlap,
                                          .gradients_in_buckets = in_buckets}});
                check_ranks(other);
                CHECK(first_difference(expected[0].state, other[0].state) == "");
            }
}

TEST_CASE("nccl data parallel: nothing to train, from the start or later", "[distributed]") {
    const auto check_frozen = [](const Group& group) {
        nn::Sequential none{nn::ReLU()};
        DataParallel(none, group).reduce();
        nn::Linear frozen(2, 2);
        frozen.to(group.device());
        frozen.freeze();
        DataParallel parallel(frozen, group);
        parallel.reduce();
        CHECK(parallel.buckets().empty());
        nn::Linear later(2, 2);
        later.to(group.device());
        DataParallel of_later(later, group);
        sum(later(ones({1, 2}, {.device = group.device()}))).backward();
        later.freeze();
        of_later.reduce();
    };
    {
        const Devices devices(2);
        run_ranks(2, check_frozen);
    }
    run_ranks(2, check_frozen);  // through host memory
}

TEST_CASE("nccl data parallel: the streams wait for each other", "[distributed]") {
    const Devices devices(2);
    const std::vector<Trained> expected = train(2, {});
    for (const Timing& timing : timings) {
        CAPTURE(timing.late_work, timing.early_communication);
        const std::vector<Trained> other = train(2, {}, timing);
        check_ranks(other);
        CHECK(first_difference(expected[0].state, other[0].state) == "");
    }
}

TEST_CASE("nccl data parallel: a step makes no host wait, and few launches", "[distributed]") {
    const Devices devices(2);
    std::vector<Trained> results(2);
    // Counts over both ranks, in steps without an overflow: with DataParallel and without.
    std::uint64_t launches[2] = {}, waits = 0, operations = 0;
    for (const bool parallel : {false, true}) {
        std::atomic<int> arrived{0};
        cuda::Counters before{}, after{};
        std::uint64_t operations_before = 0;
        run_ranks(2, [&](const Group& group) {
            std::optional<Group> alone;
            // Without DataParallel, too, each rank has a device of its own: threads that share a device share
            // its cached root gradient, and one of them may have to make another.
            if (!parallel) alone.emplace(distributed::make_group({.local_rank = group.rank()}, nullptr));
            Loop<Mlp> loop(parallel ? group : *alone, {});
            for (int number = 4; number < 7; ++number) loop.run(number);
            group.barrier();
            if (arrived++ == 0) {
                before = cuda::counters();
                operations_before = emulation::nccl_report().operations;
            }
            group.barrier();
            for (int number = 7; number < 10; ++number) loop.run(number);
            group.barrier();
            if (group.rank() == 0) after = cuda::counters();
            group.barrier();
            results[std::size_t(group.rank())] = loop.result();
        });
        launches[int(parallel)] = after.launches - before.launches;
        if (parallel) {
            waits = after.host_syncs - before.host_syncs;
            operations = emulation::nccl_report().operations - operations_before;
        }
    }
    const std::uint64_t buckets = results[0].buckets;
    CHECK(buckets > 1);
    CHECK(waits == 0);
    CHECK(operations == 3 * buckets);
    CHECK(launches[1] == launches[0]);  // the means are the library's, the rest is copies
}

namespace {

// Means of the same gradients on each rank, call after call.
std::vector<std::vector<Snapshot>> repeated_means(Dtype parameters, const DataParallelOptions& options) {
    constexpr int ranks = 3, calls = 3;
    std::vector<std::vector<Snapshot>> means(ranks);
    run_ranks(ranks, [&](const Group& group) {
        nn::Sequential net = make_mlp(5);
        net.to(parameters);
        net.to(group.device());
        const DataParallel parallel(net, group, options);
        const Tensor x = rows(group.rank()).to(group.device()), wanted = rows(7).to(group.device());
        for (int call = 0; call < calls; ++call) {
            for (const Tensor& p : net.parameters()) p.set_grad({});
            mse_loss(net(x.to(parameters)).to(float32), wanted).backward();
            means[std::size_t(group.rank())].push_back(gradients_of(net));
        }
        RANK_CHECK(parallel.buckets().size() == 1);
    });
    return means;
}

}  // namespace

TEST_CASE("nccl data parallel: which bits depend on the order in which NCCL adds", "[distributed]") {
    constexpr std::int64_t all = 1 << 20;  // one sum in each call, which begins with another rank
    const struct {
        Dtype parameters, wire;
        bool ordered;
    } kinds[] = {{float32, float32, false}, {float32, float32, true},  {float32, float16, false},
                 {float32, bfloat16, true}, {float16, float32, false}, {bfloat16, float32, false}};
    for (const auto& [parameters, wire, ordered] : kinds) {
        CAPTURE(dtype_info(parameters).name, dtype_info(wire).name, ordered);
        const Devices devices(3);
        const DataParallelOptions options{
            .first_bucket_bytes = all, .bucket_bytes = all, .wire = wire, .ordered = ordered};
        const Snapshot fixed = repeated_means(parameters, options)[0][0];
        emulation::nccl_options.changing_order = true;
        const std::vector<std::vector<Snapshot>> changing = repeated_means(parameters, options);
        const bool plain = parameters == float32 && wire == float32 && !ordered;
        bool changed = false;
        for (std::size_t call = 0; call < changing[0].size(); ++call) {
            for (const std::vector<Snapshot>& rank : changing)
                CHECK(first_difference(rank[call], changing[0][call]) == "");
            CHECK(largest_difference(fixed, changing[0][call]) < 1e-6);
            changed = changed || first_difference(fixed, changing[0][call]) != "";
        }
        CHECK(changed == plain);
        CHECK(emulation::nccl_report().violations == "");
    }
}

TEST_CASE("nccl data parallel: training while the order of sums changes", "[distributed]") {
    for (const DataParallelOptions& options :
         {Recipe().options, DataParallelOptions{.first_bucket_bytes = 2000, .wire = bfloat16},
          DataParallelOptions{.first_bucket_bytes = 2000, .ordered = true}}) {
        CAPTURE(dtype_info(options.wire).name, options.ordered);
        const Devices devices(3);
        const std::vector<Trained> fixed = train(3, {.options = options});
        emulation::nccl_options.changing_order = true;
        const std::vector<Trained> changing = train(3, {.options = options});
        check_ranks(changing);
        const bool plain = options.wire == float32 && !options.ordered;
        CHECK((first_difference(fixed[0].state, changing[0].state) == "") == !plain);
        CHECK(largest_difference(fixed[0].state, changing[0].state) <
              1e-3);  // AdamW divides by small moments
    }
}
