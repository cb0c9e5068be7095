// training::Trainer on loaders with an unknown number of batches.
#include <catch2/catch.hpp>

#include "mezzo/data/batch_loader.h"
#include "mezzo/data/transforms.h"
#include "mezzo/mezzo.h"
#include "mezzo/train/progress.h"
#include "mezzo/train/trainer.h"
#include "tests/support/folder.h"
#include "tests/support/support.h"
#include "tests/train/training_run.h"

using namespace mezzo;
using test::Folder;
using training::Ended;
using training::Trainer;
using training::TrainerOptions;
using training::TrainingStatus;

namespace {

struct Numbers {  // 0 to count - 1
    std::int64_t count;
    struct Stream {
        std::int64_t at, end;
        std::optional<double> next() { return at < end ? std::optional(double(at++)) : std::nullopt; }
    };
    Stream stream(std::int64_t) const { return {0, count}; }
};
struct KnownNumbers {
    std::int64_t count;
    std::int64_t size() const { return count; }
    double get(std::int64_t i) const { return double(i); }
};

Tensor column(const std::vector<double>& batch) {
    return Tensor::from(batch, {std::int64_t(batch.size()), 1}).to(float32);
}

// A model with dropout and momentum, whose state depends on all steps, and batches of 2 numbers.
template <class Data> struct Parts {
    explicit Parts(std::int64_t count, std::uint64_t seed = 5, double lr = 0.05)
        : loader({count}, column, {.batch_size = 2}) {
        manual_seed(seed);
        net = nn::Sequential{nn::Linear(1, 6), nn::Tanh(), nn::Dropout(0.3), nn::Linear(6, 1)};
        optimizer.emplace(net.parameters(), optim::SGDOptions{.lr = lr, .momentum = 0.9});
    }
    auto loss() {
        return [this](const Tensor& x) { return mse_loss(net(x / 10.0), sin(x)); };
    }
    std::vector<double> weights() const {
        std::vector<double> result;
        for (const StateDict& part : {net.state_dict(), optimizer->state_dict()})
            for (const auto& [name, value] : part)
                for (const double v : value.template to_vector<double>()) result.push_back(v);
        return result;
    }
    data::BatchLoader<Data, Tensor (*)(const std::vector<double>&)> loader;
    nn::Sequential net;
    std::optional<optim::SGD> optimizer;
};

// Final weight and loss of a training in which every gradient is 1.
template <class Data> std::pair<double, double> slope(Data data, const TrainerOptions& options) {
    nn::Linear line(1, 1, {.bias = false});
    {
        const NoGrad no_grad;
        line.parameters()[0].fill_(0);
    }
    optim::SGD optimizer(line.parameters(), {.lr = 1});
    data::BatchLoader loader(data, column, {.batch_size = 2});
    Trainer trainer(line, optimizer, options);
    CHECK(trainer.fit(loader, [&](const Tensor& x) {
        return sum(line(ones({1, 1}))) + max(x);
    }) == Ended::finished);
    CHECK(trainer.status().step == 2);
    return {line.parameters()[0].template item<double>(), trainer.status().loss};
}

}  // namespace

TEST_CASE("trainer: what a stream has left over is a step of the batches left", "[training]") {
    for (const auto precision : {training::Precision::float32, training::Precision::float16}) {
        const TrainerOptions options{
            .precision = precision, .scaler = {.init_scale = 1024}, .accumulate = 3, .log_every = 1};
        const auto known = slope(KnownNumbers{8}, options), streamed = slope(Numbers{8}, options);
        CHECK(known.first == Approx(-2).epsilon(1e-3));
        CHECK(streamed.first == Approx(-2).epsilon(1e-3));
        CHECK(known.second == Approx(6).epsilon(1e-3));  // -1 + 7
        CHECK(streamed.second == Approx(6).epsilon(1e-3));
    }
}

TEST_CASE("trainer: a training on a stream, stopped anywhere and resumed, is the uninterrupted one",
          "[training]") {
    const auto options = [](const std::string& path, int& evaluations) {
        return TrainerOptions{.epochs = 3,
                              .precision = training::Precision::float16,
                              .accumulate = 3,
                              .max_norm = 1,
                              .evaluate =
                                  [&] {
                                      ++evaluations;
                                      return io::Metrics{};
                                  },
                              .checkpoints = path,
                              .checkpoint_every = 2,
                              .resume = true};
    };
    const Folder folder;
    for (const std::int64_t count : {7, 11, 12}) {  // 4 batches and 6: with and without any left over
        const std::string name = std::to_string(count);
        Parts<Numbers> whole(count);
        int in_whole = 0;
        Trainer uninterrupted(whole.net, *whole.optimizer, options(folder.file(name), in_whole));
        CHECK(uninterrupted.fit(whole.loader, whole.loss()) == Ended::finished);
        CHECK(uninterrupted.status().step == 6);
        for (std::int64_t at = 1; at <= 6; ++at) {
            CAPTURE(count, at);
            int runs = 0, evaluations = 0;
            for (Ended ended = Ended::stopped; ended == Ended::stopped; ++runs) {
                REQUIRE(runs < 8);
                Parts<Numbers> parts(count, runs == 0 ? 5 : 77, runs == 0 ? 0.05 : 3);
                TrainerOptions o = options(folder.file(name + "at" + std::to_string(at)), evaluations);
                Trainer* running = nullptr;
                o.on_step = [&](const TrainingStatus& now) {
                    if (now.step % at == 0) running->stop();
                };
                Trainer trainer(parts.net, *parts.optimizer, o);
                running = &trainer;
                ended = trainer.fit(parts.loader, parts.loss());
                if (ended == Ended::stopped && trainer.status().epoch < 3) continue;
                CHECK(test::same_bits(parts.weights(), whole.weights()));
                CHECK(trainer.status().step == 6);
                CHECK(trainer.status().epoch == 3);
            }
            CHECK(runs > 1);
            CHECK(evaluations == in_whole);
        }
    }
}

TEST_CASE("trainer: a training that is stopped in its last step and resumed is evaluated once",
          "[training]") {
    const Folder folder;
    const auto fit = [&](const std::string& path, std::int64_t stop_at, std::int64_t max_steps, int& count) {
        Parts<Numbers> parts(8);
        Trainer* running = nullptr;
        const auto evaluate = [&] { return io::Metrics{{"count", ++count}}; };
        const auto on_step = [&](const TrainingStatus& now) {
            if (now.step == stop_at) running->stop();
        };
        Trainer trainer(parts.net, *parts.optimizer,
                        {.max_steps = max_steps,
                         .evaluate = evaluate,
                         .evaluate_every = max_steps == 0 ? 2 : 0,
                         .monitor = "count",
                         .on_step = on_step,
                         .checkpoints = folder.file(path),
                         .resume = true});
        running = &trainer;
        const Ended ended = trainer.fit(parts.loader, parts.loss());
        CHECK(ended == (stop_at == 0 ? Ended::finished : Ended::stopped));
        return std::pair(trainer.status().metrics, trainer.state_dict()[0].second.to_vector<double>());
    };
    for (const std::int64_t max_steps : {0, 3, 4}) {  // 4 is the end of the stream
        CAPTURE(max_steps);
        int whole = 0, resumed = 0;
        const std::string name = std::to_string(max_steps);
        const auto expected = fit(name, 0, max_steps, whole);
        fit(name + "resumed", max_steps == 0 ? 4 : max_steps, max_steps, resumed);
        for (int again = 0; again < 2; ++again) {
            CHECK(fit(name + "resumed", 0, max_steps, resumed) == expected);
            CHECK(resumed == whole);
        }
    }
}

TEST_CASE("trainer: a step that ends a stream's epoch is saved with the epoch", "[training]") {
    const Folder folder;
    Parts<Numbers> parts(7), resumed(7, 77);
    const TrainerOptions options{.epochs = 2,
                                 .accumulate = 3,
                                 .evaluate = []() -> io::Metrics { throw std::runtime_error("a crash"); },
                                 .checkpoints = folder.path,
                                 .checkpoint_every = 1};
    CHECK_THROWS_WITH(Trainer(parts.net, *parts.optimizer, options).fit(parts.loader, parts.loss()),
                      "a crash");
    Trainer trainer(resumed.net, *resumed.optimizer,
                    {.epochs = 2, .accumulate = 3, .checkpoints = folder.path, .resume = true});
    CHECK(trainer.fit(resumed.loader, resumed.loss()) == Ended::finished);
    CHECK(trainer.status().step == 4);
}

TEST_CASE("trainer: max_steps in the middle of a stream leaves the epoch to be gone on with", "[training]") {
    const Folder folder;
    Parts<Numbers> first(8), second(8, 77);
    Trainer limited(first.net, *first.optimizer, {.epochs = 2, .max_steps = 2, .checkpoints = folder.path});
    CHECK(limited.fit(first.loader, first.loss()) == Ended::finished);
    CHECK(limited.status().epoch == 0);
    Trainer more(second.net, *second.optimizer, {.epochs = 2, .checkpoints = folder.path, .resume = true});
    CHECK(more.fit(second.loader, second.loss()) == Ended::finished);
    CHECK(more.status().step == 8);
    CHECK(more.fit(second.loader, second.loss()) == Ended::finished);  // at once
    CHECK(more.status().step == 8);
}

TEST_CASE("trainer: the weight of a shard of a batch loader", "[training]") {
    struct Ones {
        std::int64_t size() const { return 3; }
        float get(std::int64_t) const { return 1; }
    };
    for (int rank = 0; rank < 2; ++rank) {
        nn::Linear net(1, 1, {.bias = false});
        const NoGrad plain;
        net.weight.copy_(zeros({1, 1}));
        const EnableGrad recorded;
        optim::SGD optimizer(net.parameters(), {.lr = 1});
        data::BatchLoader loader(Ones{}, {.batch_size = 3, .shard = {.rank = rank, .size = 2}});
        training::Trainer trainer(net, optimizer, {.epochs = 1});
        trainer.fit(loader, [&](const Tensor& x) { return mean(net(x.unsqueeze(1))); });
        // Two rows of three, then one, times two ranks.
        CHECK(net.weight.item<double>() == Approx(rank == 0 ? -4.0 / 3 : -2.0 / 3));
    }
}
