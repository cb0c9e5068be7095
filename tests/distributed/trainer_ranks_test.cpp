// training::Trainer on several ranks: all ranks make the same decisions, even if only one rank has a reason
// for them.
#include <catch2/catch.hpp>

#include "mezzo/data/batch_loader.h"
#include "mezzo/data/loader.h"
#include "mezzo/train/trainer.h"
#include "tests/distributed/thread_group.h"
#include "tests/distributed/training.h"

using namespace mezzo;
using namespace mezzo::test;
using distributed::DataParallel;
using distributed::Group;
using training::Ended;
using training::Trainer;
using training::TrainerOptions;
using training::TrainingStatus;

namespace {

struct Outcome {
    Ended ended = Ended::finished;
    TrainingStatus status;
    Snapshot weights;
};

// Trains on 2 ranks with batches of their own, 4 an epoch. adapt(options, trainer, optimizer, rank, fit) sets
// what a test needs and calls fit().
template <class Adapt> std::vector<Outcome> train(const Adapt& adapt) {
    std::vector<Outcome> outcomes(2);
    run_ranks(2, [&](const Group& group) {
        const int rank = group.rank();
        nn::Sequential net = make_mlp(std::uint64_t(5 + rank));
        optim::SGD optimizer(net.parameters(), {.lr = 0.1});
        DataParallel parallel(net, group);
        data::DataLoader loader({rows(1, 32), rows(2, 32)}, {.batch_size = 8, .shard = group.shard()});
        TrainerOptions options{.epochs = 6, .parallel = &parallel, .log_every = 1, .stop_on_signals = false};
        Trainer* running = nullptr;
        adapt(options, running, optimizer, rank, [&] {
            Trainer trainer(net, optimizer, options);
            running = &trainer;
            Outcome& outcome = outcomes[std::size_t(rank)];
            outcome.ended = trainer.fit(
                loader, [&](const data::Batch& batch) { return mse_loss(net(batch.x), batch.y); });
            outcome.status = trainer.status();
            outcome.weights = weights_of(net);
            group.barrier();  // a rank that is not done yet gets an error, and does not wait for ever
        });
    });
    CHECK(first_difference(outcomes[0].weights, outcomes[1].weights) == "");
    CHECK(outcomes[0].ended == outcomes[1].ended);
    CHECK(outcomes[0].status.step == outcomes[1].status.step);
    CHECK(outcomes[0].status.lr == outcomes[1].status.lr);
    CHECK(outcomes[0].status.loss == outcomes[1].status.loss);
    CHECK(outcomes[0].status.metrics == outcomes[1].status.metrics);
    return outcomes;
}

// The loss falls on rank 0, and rises twice as fast on rank 1.
autograd::Callback<io::Metrics()> evaluation(int rank) {
    return [rank, count = 0]() mutable {
        ++count;
        return io::Metrics{{"rank", double(rank)}, {"loss", rank == 0 ? -count : 2.0 * count}};
    };
}

}  // namespace

TEST_CASE("trainer on ranks: metrics are means, and plateau and patience go by them", "[distributed]") {
    const auto plateaus =
        train([](TrainerOptions& options, Trainer*&, optim::SGD& optimizer, int rank, const auto& fit) {
            optim::ReduceLROnPlateau plateau(optimizer, {.factor = 0.1, .patience = 0});
            options.plateau = &plateau;
            options.evaluate = evaluation(rank);
            options.monitor = "loss";
            options.better = training::Better::lower;
            fit();
        });
    CHECK(plateaus[1].status.metrics == io::Metrics{{"rank", 0.5}, {"loss", 3}});
    CHECK(plateaus[1].status.lr == Approx(1e-5));
    CHECK(plateaus[1].status.step == 24);

    const auto patient =
        train([](TrainerOptions& options, Trainer*&, optim::SGD&, int rank, const auto& fit) {
            options.evaluate = evaluation(rank);
            options.monitor = "loss";
            options.better = training::Better::lower;
            options.patience = 2;
            fit();
        });
    CHECK(patient[0].ended == Ended::early);
    CHECK(patient[0].status.epoch == 3);
}

TEST_CASE("trainer on ranks: stop() on one of them stops all", "[distributed]") {
    for (const bool in_epoch : {false, true}) {
        const auto stopped =
            train([&](TrainerOptions& options, Trainer*& running, optim::SGD&, int rank, const auto& fit) {
                const TrainerOptions::OnStatus stop = [&running, rank](const TrainingStatus& now) {
                    if (rank == 1 && now.step >= 7) running->stop();
                };
                (in_epoch ? options.on_epoch : options.on_step) = stop;
                fit();
            });
        CHECK(stopped[0].ended == Ended::stopped);
        CHECK(stopped[0].status.step == (in_epoch ? 8 : 7));
    }
}

TEST_CASE("trainer on ranks: what streams have left over is scaled, and reduced once", "[distributed]") {
    struct Numbers {
        struct Stream {
            int left;
            std::optional<int> next() { return left > 0 ? std::optional(left--) : std::nullopt; }
        };
        Stream stream(std::int64_t) const { return {4}; }
    };
    for (const double max_norm : {0.0, 100.0}) {
        std::vector<double> weights(2);
        run_ranks(2, [&](const Group& group) {
            nn::Linear line(1, 1, {.bias = false});
            {
                const NoGrad no_grad;
                line.parameters()[0].fill_(0);
            }
            optim::SGD optimizer(line.parameters(), {.lr = 1});
            DataParallel parallel(line, group);
            const auto collate = [](const std::vector<int>&) { return ones({1, 1}); };
            data::BatchLoader loader(Numbers{}, collate, {.batch_size = 1});
            Trainer trainer(
                line, optimizer,
                {.accumulate = 3, .max_norm = max_norm, .parallel = &parallel, .stop_on_signals = false});
            const double slope = group.rank() == 0 ? 1 : 3;
            trainer.fit(loader, [&](const Tensor& x) { return sum(line(x)) * slope; });
            RANK_CHECK(trainer.status().step == 2);
            weights[std::size_t(group.rank())] = line.parameters()[0].item<double>();
        });
        CHECK(weights[0] == Approx(-4));
        CHECK(weights[1] == Approx(-4));
    }
}
