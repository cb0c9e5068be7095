// Data-parallel training on emulated devices, over the stand-in for NCCL.
#include <catch2/catch.hpp>
#include <limits>

#include "cuda/runtime.h"
#include "mezzo/capture.h"
#include "tests/distributed/device_groups.h"
#include "tests/distributed/training.h"

using namespace mezzo;
using namespace mezzo::test;
using distributed::DataParallel;
using distributed::DataParallelOptions;
using distributed::Group;

namespace {

constexpr int steps = 20, overflow_step = 3;

struct Recipe {
    DataParallelOptions options = {.first_bucket_bytes = 2000, .bucket_bytes = 4000};
    Dtype parameters = float32;
    bool autocast = false;  // in float16
    bool captured = false;
    int restart_step = -1;  // in which rank 1 alone must record its step anew
};

// Everything that a rank has after its steps.
struct Trained {
    Snapshot state;
    std::int64_t applied = 0, skipped = 0;
    double scale = 0;
    std::size_t buckets = 0;
    cuda::CaptureStatistics captures = {};
    std::string engine;
};

// A training step on the rank's device.
class Loop {
public:
    Loop(const Group& group, const Recipe& recipe)
        : group_(group),
          recipe_(recipe),
          net_(make_mlp(std::uint64_t(5 + group.rank()))) {  // rank 0's values are the start of all
        net_.to(group.device());
        if (recipe.parameters != float32) net_.to(recipe.parameters);
        optimizer_.emplace(net_.named_parameters(), optim::AdamWOptions{.lr = 0.01});
        if (recipe.parameters == float16) optimizer_->use_master_weights();
        parallel_.emplace(net_, group, recipe.options);
        captured_.emplace(
            [this](const Tensors& in) { return step(in); },
            cuda::CaptureOptions{.warmup = 2, .device = group.device(), .parallel_branches = FastPath::off});
    }

    Tensors step(const Tensors& in) {
        Tensor y;
        {
            const amp::Autocast scope(
                {.device = DeviceType::cuda, .dtype = float16, .enabled = recipe_.autocast});
            y = net_(in[0].to(recipe_.parameters));
        }
        const Tensor loss = mse_loss(y.to(float32), in[1]) * in[2];
        scaler_.scale(loss).backward();
        scaler_.step(*optimizer_);
        scaler_.update();
        optimizer_->zero_grad();
        return {loss};
    }

    void run(int number) {
        const int part = number * group_.size() + group_.rank();
        const bool overflow = number == overflow_step && group_.rank() == 1;
        const Tensors inputs{
            rows(part).to(group_.device()), rows(part + 1000).to(group_.device()),
            scalar(overflow ? std::numeric_limits<double>::infinity() : 1.0, {.device = group_.device()})};
        if (number == recipe_.restart_step && group_.rank() == 1)
            optimizer_->load_state_dict(optimizer_->state_dict());
        if (recipe_.captured)
            (*captured_)(inputs);
        else
            step(inputs);
    }

    Trained result() const {
        Trained t;
        append(t.state, "", net_.named_parameters());
        append(t.state, "optimizer.", optimizer_->state_dict());
        append(t.state, "scaler.", scaler_.state_dict());
        t.applied = optimizer_->applied_steps();
        t.skipped = optimizer_->skipped_steps();
        t.scale = scaler_.get_scale();
        t.buckets = parallel_->buckets().size();
        t.captures = captured_->statistics();
        t.engine = group_.engine();
        return t;
    }

private:
    const Group group_;
    const Recipe recipe_;
    nn::Sequential net_;
    std::optional<optim::AdamW> optimizer_;
    amp::GradScaler scaler_{{.init_scale = 1024, .growth_interval = 6}};
    std::optional<DataParallel> parallel_;
    std::optional<cuda::CapturedStep> captured_;
};

std::vector<Trained> train(int ranks, const Recipe& recipe, const Timing& timing = timings[0]) {
    set_timing(timing);
    std::vector<Trained> results;
    results.resize(std::size_t(ranks));
    run_ranks(ranks, [&](const Group& group) {
        Loop loop(group, recipe);
        for (int number = 0; number < steps; ++number) loop.run(number);
        results[std::size_t(group.rank())] = loop.result();
    });
    return results;
}

// The same in host memory.
std::vector<Trained> train_through_host(int ranks, const Recipe& recipe) {
    setenv("MEZZO_NCCL", "off", 1);
    std::vector<Trained> results = train(ranks, recipe);
    emulation::use_nccl_stand_in(MEZZO_NCCL_STAND_IN);
    CHECK(results[0].engine == "threads");
    return results;
}

void check_ranks(const std::vector<Trained>& ranks) {
    for (const Trained& rank : ranks) {
        CHECK(first_difference(ranks[0].state, rank.state) == "");
        CHECK(rank.skipped == 1);
        CHECK(rank.applied == steps - 1);
        CHECK(rank.scale == ranks[0].scale);
        CHECK(rank.engine == "NCCL 2.28.9");
    }
    CHECK(emulation::nccl_report().violations == "");
    CHECK(emulation::nccl_report().communicators == 0);
}

}  // namespace

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
            // With 3 ranks a mean in float32 multiplies by a rounded 1 / 3 before the sum here, and after it there.
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

TEST_CASE("nccl data parallel: overlap, buckets and homes do not change a bit", "[distributed]") {
    const Devices devices(2);
    const std::vector<Trained> expected = train(2, {});
    for (const bool overlap : {false, true})
        for (const bool homes : {false, true})
            for (const std::int64_t bytes : {1, 1 << 20}) {
                CAPTURE(overlap, homes, bytes);
                const std::vector<Trained> other = train(2, {.options = {.first_bucket_bytes = bytes,
                                                                         .bucket_bytes = bytes,
                                                                         .overlap = overlap,
                                                                         .gradients_in_buckets = homes}});
                check_ranks(other);
                CHECK(first_difference(expected[0].state, other[0].state) == "");
            }
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
    // Of both ranks, in steps without an overflow: with DataParallel and without.
    std::uint64_t launches[2] = {}, waits = 0, operations = 0;
    for (const bool parallel : {false, true}) {
        std::atomic<int> arrived{0};
        cuda::Counters before{}, after{};
        std::uint64_t operations_before = 0;
        run_ranks(2, [&](const Group& group) {
            std::optional<Group> alone;
            // Each has a device of its own here, too: threads that share one share the kept seed of backward, and one of
            // them may have to make another.
            if (!parallel) alone.emplace(distributed::make_group({.local_rank = group.rank()}, nullptr));
            Loop loop(parallel ? group : *alone, {});
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

TEST_CASE("nccl data parallel: captured steps are eager ones, bit for bit", "[distributed]") {
    for (const DataParallelOptions& options :
         {Recipe().options, DataParallelOptions{.first_bucket_bytes = 2000, .wire = float16}}) {
        CAPTURE(options.wire);
        const Devices devices(2);
        const std::vector<Trained> eager = train(2, {.options = options});
        for (const Timing& timing : timings) {
            const std::vector<Trained> captured = train(2, {.options = options, .captured = true}, timing);
            check_ranks(captured);
            CHECK(first_difference(eager[0].state, captured[0].state) == "");
            for (const Trained& rank : captured) {
                CHECK(rank.captures.captures == 1);
                CHECK(rank.captures.replays == steps - 3);
            }
        }
    }
}

TEST_CASE("nccl data parallel: a rank that must record its step anew makes all do so", "[distributed]") {
    const Devices devices(2);
    const std::vector<Trained> eager = train(2, {});
    const std::vector<Trained> captured = train(2, {.captured = true, .restart_step = 9});
    check_ranks(captured);
    CHECK(first_difference(eager[0].state, captured[0].state) == "");
    for (const Trained& rank : captured) {
        CHECK(rank.captures.captures == 2);
        CHECK(rank.captures.eager_runs == 4);
        CHECK(rank.captures.replays == steps - 6);
    }
}
