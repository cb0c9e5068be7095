// Captured steps, DataParallel objects and handles of a group that end in different orders, over the stand-in
// for NCCL. Graphs are destroyed before the communicator whose operations they hold: it lives as long as any
// of them.
#include <barrier>
#include <catch2/catch.hpp>
#include <cmath>
#include <memory>
#include <optional>

#include "cuda/runtime/runtime.h"
#include "mezzo/capture.h"
#include "tests/distributed/device_groups.h"
#include "tests/distributed/training.h"

using namespace mezzo;
using namespace mezzo::test;
using distributed::DataParallel;
using distributed::Group;

namespace {

constexpr int ranks = 2, captured_at = 2;  // the call, from 0 on, after two warm-up runs

// Objects of one rank. Nothing else holds its group.
struct Owned {
    std::optional<Group> group = {};
    std::shared_ptr<nn::Sequential> net = std::make_shared<nn::Sequential>(make_mlp(5));
    std::unique_ptr<DataParallel> parallel = {};
    std::unique_ptr<cuda::CapturedStep> step = {};
    int rank = 0, calls = 0;

    Tensor call() {
        const int part = 2 * calls++ + rank;
        return (*step)({full({4, net_width}, 0.25 * part, {.device = device})})[0];
    }
    Device device = cpu_device;
};

cuda::CaptureOptions options_on(Device device) { return {.warmup = captured_at, .device = device}; }

// Gives the rank a step that trains a net.
void begin_training(Owned& own) {
    own.net->to(own.device);
    own.parallel = std::make_unique<DataParallel>(
        *own.net, *own.group,
        distributed::DataParallelOptions{.first_bucket_bytes = 2000, .bucket_bytes = 4000});
    const auto optimizer = std::make_shared<optim::SGD>(own.net->parameters(), optim::SGDOptions{.lr = 0.1});
    own.step = std::make_unique<cuda::CapturedStep>(
        [net = own.net, optimizer](const Tensors& in) {
            const Tensor loss = mse_loss((*net)(in[0]), in[0] * 0.5);
            loss.backward();
            optimizer->step();
            optimizer->zero_grad();
            return Tensors{loss};
        },
        options_on(own.device));
}

// Gives the rank a step that adds tensors of all ranks. The step uses a group that it does not own.
void begin_sums(Owned& own) {
    own.step = std::make_unique<cuda::CapturedStep>(
        [&own](const Tensors& in) {
            const Tensor x = in[0] * 1.0;
            own.group->all_reduce_(x);
            return Tensors{x};
        },
        options_on(own.device));
}

// Runs body(own, rank) on a thread of each rank, with groups of their own.
template <class Body> void run_owners(const Body& body) {
    std::vector<Group> groups = thread_groups(std::make_shared<test::Meeting>(ranks));
    std::vector<Owned> owned(ranks);
    for (std::size_t rank = 0; rank < ranks; ++rank) owned[rank].group = groups[rank];
    groups.clear();
    std::vector<std::exception_ptr> errors(ranks);
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < ranks; ++rank)
        threads.emplace_back([&, rank] {
            try {
                owned[rank].device = owned[rank].group->device();
                owned[rank].rank = int(rank);
                body(owned[rank], int(rank));
            } catch (const std::exception&) {
                errors[rank] = std::current_exception();
            }
        });
    for (std::thread& thread : threads) thread.join();
    // The remaining objects end on this thread, whose current device is that of rank 0.
    owned.clear();
    for (const std::exception_ptr& error : errors) CHECK(text_of(error) == "");
}

void check_ended() {
    CHECK(emulation::nccl_report().violations == "");
    CHECK(emulation::nccl_report().communicators == 0);
}

}  // namespace

TEST_CASE("nccl lifetimes: a captured step that outlives its DataParallel and the handles", "[distributed]") {
    for (const bool here : {false, true})  // whether it ends on its rank's thread
        for (const Timing& timing : timings) {
            CAPTURE(here, timing.late_work, timing.early_communication);
            const Devices devices(ranks);
            set_timing(timing);
            std::barrier all(ranks);
            run_owners([&](Owned& own, int) {
                begin_training(own);
                for (int call = 0; call < 5; ++call) own.call();
                RANK_CHECK(own.step->statistics().replays == 2);
                own.parallel.reset();
                own.group.reset();
                all.arrive_and_wait();
                RANK_CHECK(emulation::nccl_report().communicators == ranks);
                // No DataParallel reduces the gradients any more, but the step runs.
                RANK_CHECK(std::isfinite(doubles(own.call())[0]));
                RANK_CHECK(own.step->statistics().replays == 2);
                RANK_CHECK(own.step->statistics().eager_runs == captured_at + 1);
                all.arrive_and_wait();
                if (here) own.step.reset();
            });
            check_ended();
            CHECK(emulation::nccl_report().aborts == 0);
        }
}

TEST_CASE("nccl lifetimes: a captured call of a group goes on without its handles", "[distributed]") {
    for (const Timing& timing : timings) {
        CAPTURE(timing.late_work, timing.early_communication);
        const Devices devices(ranks);
        set_timing(timing);
        std::barrier all(ranks);
        run_owners([&](Owned& own, int) {
            begin_sums(own);
            for (int call = 0; call < 3; ++call) own.call();
            own.group.reset();
            for (int call = 3; call < 6; ++call) {
                RANK_CHECK(doubles(own.call())[0] == 0.25 * (4 * call + 1));
            }
            RANK_CHECK(own.step->statistics().replays == 3);
            all.arrive_and_wait();
            RANK_CHECK(emulation::nccl_report().communicators == ranks);
            all.arrive_and_wait();
            own.step.reset();
        });
        check_ended();
        CHECK(emulation::nccl_report().aborts == 0);
    }
}

TEST_CASE("nccl lifetimes: every order of ends, with work under way, another one on each rank",
          "[distributed]") {
    constexpr int orders[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (std::size_t i = 0; i < std::size(orders); ++i)
        for (const Timing& timing : timings) {
            CAPTURE(i, timing.late_work, timing.early_communication);
            const Devices devices(ranks);
            set_timing(timing);
            run_owners([&](Owned& own, int rank) {
                begin_training(own);
                for (int call = 0; call < 4; ++call) own.call();
                for (const int what : orders[(i + 3 * std::size_t(rank)) % std::size(orders)]) {
                    if (what == 0) own.step.reset();
                    if (what == 1) own.parallel.reset();
                    if (what == 2) own.group.reset();
                }
            });
            check_ended();
            CHECK(emulation::nccl_report().aborts == 0);
        }
}

// Queued work outlives the group, as in a function that trains a model and returns it.
TEST_CASE("nccl lifetimes: what has been queued is done after the group has ended", "[distributed]") {
    for (const bool captured : {false, true}) {
        std::vector<double> expected;
        for (const Timing& timing : timings) {
            CAPTURE(captured, timing.late_work, timing.early_communication);
            const Devices devices(ranks);
            set_timing(timing);
            std::vector<std::vector<double>> weights(ranks);
            run_owners([&](Owned& own, int rank) {
                begin_training(own);
                for (int call = 0; call < (captured ? 4 : captured_at); ++call) own.call();
                own.step.reset();
                own.parallel.reset();
                own.group.reset();
                weights[std::size_t(rank)] = doubles(own.net->parameters()[0].detach());
            });
            if (expected.empty()) expected = weights[0];
            for (const std::vector<double>& rank : weights) CHECK(rank == expected);
            check_ended();
            CHECK(emulation::nccl_report().aborts == 0);
        }
    }
}
