// Failures of communication between devices: every rank ends in time with the message of the rank that failed
// first. Ranks are threads that are connected by a store, as processes are.
#include <catch2/catch.hpp>
#include <chrono>
#include <future>

#include "core/tensor_impl.h"
#include "cuda/nccl/nccl.h"
#include "cuda/runtime/on_device.h"
#include "distributed/control.h"
#include "distributed/store_server.h"
#include "mezzo/capture.h"
#include "optim/optimizer.h"
#include "tests/distributed/device_groups.h"
#include "tests/distributed/training.h"
#include "tests/emulation/sanitizers.h"

using namespace mezzo;
using namespace mezzo::test;
using namespace mezzo::distributed;
using Catch::Matchers::Contains;
using emulation::NcclFault;
using Clock = std::chrono::steady_clock;

namespace {

constexpr double timeout = 10;  // s, of calls; the store waits for 1 s for a better cause than an engine has
constexpr auto limit = std::chrono::seconds(60);  // on a busy machine

struct Outcome {
    std::vector<std::string> errors;
    std::chrono::milliseconds lasted{0};
};

// Runs body(group) as every rank. A rank's group ends while its exception passes, as in a program.
template <class Body> Outcome run_over_store(int ranks, const Body& body) {
    StoreServer server(listen_at("127.0.0.1", 0), {ranks, "run", "the test"});
    const auto meeting = std::make_shared<test::Meeting>(ranks);
    Outcome outcome;
    outcome.errors.resize(std::size_t(ranks), "none");
    const Clock::time_point begin = Clock::now();
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank)
        threads.emplace_back([&, rank] {
            const RankInfo place{rank, ranks, rank, ranks};
            try {
                auto control = std::make_unique<Control>(
                    Launch{place, "127.0.0.1", server.port(), 1, true, "run"}, InitOptions{timeout, 30});
                const distributed::Group group =
                    make_group(place, std::make_unique<ThreadCollectives>(meeting, rank), std::move(control),
                               {timeout, 30});
                body(group);
            } catch (const std::exception& error) {
                outcome.errors[std::size_t(rank)] = error.what();
            }
        });
    for (std::thread& thread : threads) thread.join();
    outcome.lasted = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin);
    return outcome;
}

// Trains a few steps; in each of them the host reads the loss.
void train(const distributed::Group& group) {
    nn::Sequential net = make_mlp(5);
    net.to(group.device());
    optim::SGD optimizer(net.parameters(), {.lr = 0.1});
    DataParallel parallel(net, group);
    for (int step = 0; step < 6; ++step) {
        const Tensor loss =
            mse_loss(net(rows(group.rank()).to(group.device())), rows(step + 9).to(group.device()));
        loss.backward();
        optimizer.step();
        optimizer.zero_grad();
        static_cast<void>(doubles(net.parameters()[0].detach()));
    }
}

void plant(NcclFault fault) {
    emulation::nccl_options.fault = fault;
    emulation::nccl_options.fault_rank = 1;
    emulation::nccl_options.fault_call = 3;
}

// Checks that all ranks have ended in time, with the message of the first that failed.
void check_outcome(const Outcome& outcome, const char* words) {
    for (const std::string& error : outcome.errors) CHECK_THAT(error, Contains(words));
    CHECK(outcome.lasted < limit);
    CHECK(emulation::nccl_report().communicators == 0);
    CHECK(emulation::nccl_report().violations == "");
}

}  // namespace

TEST_CASE("nccl faults: planted failures end all ranks with one cause", "[distributed]") {
    const struct {
        NcclFault fault;
        const char* words;
    } cases[] = {{NcclFault::refused, "planted: the call is refused"},
                 {NcclFault::error, "planted: the network is gone"},
                 {NcclFault::lost, "within 10 s"}};
    for (const int ranks : {2, 3})
        for (const auto& [fault, words] : cases) {
            CAPTURE(ranks, int(fault));
            const Devices devices(ranks);
            plant(fault);
            check_outcome(run_over_store(ranks, train), words);
        }
}

// Calls 1 and 2 are those of the warm-up and of the capture. The captured operation runs with the first
// launch.
TEST_CASE("nccl faults: planted in the first launch of a captured step", "[distributed]") {
    const struct {
        NcclFault fault;
        const char* words;
    } cases[] = {{NcclFault::error, "planted: the network is gone"}, {NcclFault::lost, "within 10 s"}};
    for (const auto& [fault, words] : cases) {
        CAPTURE(int(fault));
        const Devices devices(2);
        emulation::options.late_work = true;  // otherwise a launch returns when its work has ended
        plant(fault);
        emulation::nccl_options.fault_call = 2;
        const Outcome outcome = run_over_store(2, [](const distributed::Group& group) {
            cuda::CapturedStep step(
                [&](const Tensors& in) {
                    const Tensor x = in[0] * 2.0;
                    group.all_reduce_(x);
                    return Tensors{x};
                },
                {.warmup = 1, .device = group.device()});
            for (int call = 0; call < 4; ++call)
                static_cast<void>(doubles(step({ones({4}, {.device = group.device()})})[0]));
        });
        check_outcome(outcome, words);
    }
}

// NCCL's abort waits until no graph holds operations, and a graph may wait for the notice that the group is
// broken.
TEST_CASE("nccl faults: calls throw while an abort hangs", "[distributed]") {
    const Devices devices(1);
    std::promise<std::string> thrown;
    std::future<std::string> words = thrown.get_future();
    emulation::nccl_abort_hangs = true;
    std::thread rank([&] {
        const auto engine =
            cuda::nccl::library.connect({.device = 0, .size = 1, .id = cuda::nccl::library.new_id()});
        const Tensor x = ones({8}, {.device = Device(DeviceType::cuda, 0)});
        engine->abort();
        // Waits until the abort is under way.
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        try {
            engine->all_reduce(raw(x), 8, float32, DeviceReduction::sum);
            thrown.set_value("nothing");
        } catch (const std::exception& error) {
            thrown.set_value(error.what());
        }
    });
    const bool in_time = words.wait_for(limit) == std::future_status::ready;
    emulation::nccl_abort_hangs = false;
    rank.join();
    CHECK(in_time);
    CHECK_THAT(words.get(), Contains("the group is broken"));
}

TEST_CASE("nccl faults: a rank that throws in a captured step", "[distributed]") {
    const Devices devices(2);
    const Outcome outcome = run_over_store(2, [](const distributed::Group& group) {
        nn::Sequential net = make_mlp(5);
        net.to(group.device());
        DataParallel parallel(net, group);
        cuda::CapturedStep step(
            [&](const Tensors& in) {
                mse_loss(net(in[0]), in[0]).backward();
                for (const Tensor& p : net.parameters()) p.set_grad({});
                return Tensors{};
            },
            {.warmup = 1, .device = group.device()});
        for (int call = 0; call < 6; ++call) {
            check(call < 4 || group.rank() == 0, ErrorKind::value, "the data has ended");
            step({rows(group.rank() + call)});
        }
    });
    check_outcome(outcome, "the data has ended");
}

// With the address sanitizer a tensor's memory goes back to the device at once, and that waits for the work
// that hangs here.
#ifndef MEZZO_ASAN
TEST_CASE("nccl faults: an abort that hangs holds nobody up for long", "[distributed]") {
    const Devices devices(2);
    emulation::options.late_work = true;  // no thread of a rank runs its device's work
    plant(NcclFault::refused);
    emulation::nccl_abort_hangs = true;
    const Outcome outcome = run_over_store(2, [](const distributed::Group& group) {
        const Tensor x = ones({4}, {.device = group.device()});
        for (int call = 0; call < 5; ++call) group.all_reduce_(x);
    });
    CHECK(emulation::nccl_report().communicators == 2);
    emulation::nccl_abort_hangs = false;
    for (const Clock::time_point begin = Clock::now();
         emulation::nccl_report().communicators != 0 && Clock::now() < begin + limit;)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    for (int device = 0; device < 2; ++device) {
        const cuda::OnDevice scope(device);
        cuda::synchronize();
    }
    check_outcome(outcome, "planted: the call is refused");
}
#endif

TEST_CASE("nccl faults: the stand-in reports what ranks do differently", "[distributed]") {
    const Devices devices(2);
    emulation::options.early_communication = true;
    std::vector<std::string> words(2);
    const std::string id = cuda::nccl::library.new_id();
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 2; ++rank)
        ranks.emplace_back([&, rank] {
            std::promise<std::string> failed;
            const auto note = [&](const std::string& text, bool) { failed.set_value(text); };
            const auto engine = cuda::nccl::library.connect(
                {.device = rank, .rank = rank, .size = 2, .id = id, .failed = note});
            const Tensor x = ones({8}, {.device = Device(DeviceType::cuda, rank)});
            engine->all_reduce(raw(x), rank == 0 ? 8 : 6, float32, DeviceReduction::sum);
            words[std::size_t(rank)] = failed.get_future().get();
            engine->abort();
        });
    for (std::thread& rank : ranks) rank.join();
    for (const std::string& text : words)
        CHECK_THAT(text,
                   Contains("rank 0 calls all_reduce of 8 elements of type 7 by operation 0, rank 1 calls "
                            "all_reduce of 6 elements"));
    CHECK_THAT(emulation::nccl_report().violations, Contains("rank 0 calls all_reduce of 8"));
}

TEST_CASE("nccl faults: a sharded step for which one rank lacks memory changes nothing", "[distributed]") {
    const Devices devices(2);
    run_ranks(2, [](const distributed::Group& group) {
        nn::Sequential net = seeded(1, [] {
            return nn::Sequential{nn::Linear(1024, 1024, {.bias = false}),
                                  nn::Linear(1024, 1024, {.bias = false})};
        });
        net.to(group.device());
        optim::AdamW optimizer(net.named_parameters(), {.lr = 0.1});
        DataParallel parallel(net, group);
        shard(optimizer, parallel);
        (sum(net.parameters()[0]) + sum(net.parameters()[1])).backward();
        const Snapshot before = weights_of(net);
        empty_cache(group.device());
        const std::size_t reserved = memory_stats(group.device()).reserved;
        if (group.rank() == 1) set_memory_limit(group.device(), reserved + 1000);
        RANK_CHECK_THROWS(optimizer.step(),
                          group.rank() == 1 ? "out of memory" : "rank 1 could not begin its step");
        set_memory_limit(group.device(), 0);
        RANK_CHECK(first_difference(weights_of(net), before).empty());
        optimizer.step();
        RANK_CHECK(!first_difference(weights_of(net), before).empty());
        const Tensor weight = net.parameters()[0].detach(), of_rank_0 = weight.clone();
        group.broadcast_(of_rank_0, 0);
        RANK_CHECK(doubles(weight) == doubles(of_rank_0));
    });
}

namespace {

// Sharding whose complete() fails, which runs after the kernel of a sharded update.
class Incompletable final : public optim::ShardedState {
public:
    explicit Incompletable(std::unique_ptr<optim::ShardedState> inner) : inner_(std::move(inner)) {}
    void begin_update(const optim::OptimizerImpl& optimizer, const std::vector<std::size_t>& indices,
                      const std::exception_ptr& error) override {
        inner_->begin_update(optimizer, indices, error);
    }
    void give_up() noexcept override { inner_->give_up(); }
    void complete(const std::vector<optim::PartialTensor>&) override {
        fail(ErrorKind::memory, "planted: no memory for parts");
    }
    void agree_to_load(const std::string& where, const std::exception_ptr& error,
                       std::uint64_t digest) override {
        inner_->agree_to_load(where, error, digest);
    }

private:
    const std::unique_ptr<optim::ShardedState> inner_;
};

}  // namespace

TEST_CASE("nccl faults: a sharded update that one rank cannot complete ends all", "[distributed]") {
    const Devices devices(2);
    const Outcome outcome = run_over_store(2, [](const distributed::Group& group) {
        nn::Sequential net = make_mlp(5);
        optim::AdamW optimizer(net.named_parameters());
        DataParallel parallel(net, group);
        shard(optimizer, parallel);
        std::unique_ptr<optim::ShardedState>& sharing = optimizer.impl().sharing;
        if (group.rank() == 1) sharing = std::make_unique<Incompletable>(std::move(sharing));
        mse_loss(net(rows(group.rank())), rows(7)).backward();
        RANK_CHECK_THROWS(optimizer.step(), "planted: no memory for parts");
        group.barrier();
    });
    check_outcome(outcome, "planted: no memory for parts");
}
