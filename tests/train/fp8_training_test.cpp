// Float8 trainings with Recipe::delayed through checkpoints: resumed ones have the bits of those that ran on.
#include <catch2/catch.hpp>
#include <optional>
#include <vector>

#include "mezzo/data/loader.h"
#include "mezzo/mezzo.h"
#include "mezzo/train/checkpoint.h"
#include "mezzo/train/trainer.h"
#include "tests/support/folder.h"

using namespace mezzo;
using test::Folder;

namespace {

constexpr amp::Fp8 fp8{.recipe = amp::Recipe::delayed, .least_size = 16};

// A model, its optimizer and data that grow, so that current scaling would give other scales.
struct Parts {
    nn::Sequential net;
    std::optional<optim::AdamW> optimizer;
    std::optional<data::DataLoader> loader;

    explicit Parts(std::uint64_t seed = 26) {
        manual_seed(seed);
        net = nn::Sequential{nn::Linear(16, 32), nn::GELU(), nn::Linear(32, 16)};
        optimizer.emplace(net.parameters(), optim::AdamWOptions{.lr = 0.01});
        const Tensor x = randn({128, 16}) * exp(arange(128).to(float32).reshape({128, 1}) / 16);
        loader.emplace(data::Dataset{x, zeros({128}, {.dtype = int64})},
                       data::DataLoaderOptions{.batch_size = 16});
    }
    Tensor loss(const Tensor& x) const { return mse_loss(net(x).to(float32), x); }
    void steps(int count) {
        for (int step = 0; step < count; ++step) {
            Tensor value;
            {
                const amp::Autocast scope({.dtype = bfloat16, .fp8 = fp8});
                value = loss(randn({16, 16}) * double(64 >> optimizer->applied_steps()));
            }
            optimizer->zero_grad();
            value.backward();
            optimizer->step();
        }
    }
    std::vector<double> weights() const {
        std::vector<double> result;
        for (const Tensor& p : net.parameters())
            for (const double v : p.to_vector<double>()) result.push_back(v);
        return result;
    }
};

}  // namespace

TEST_CASE("fp8 delayed: a resumed training has the bits of one that ran on", "[training]") {
    const Folder folder;
    Parts whole;
    whole.steps(4);
    for (const bool with_state : {true, false}) {
        CAPTURE(with_state);
        const auto checkpoint = [&](Parts& parts, amp::Fp8State& state) {
            training::CheckpointParts list{.model = parts.net, .optimizer = *parts.optimizer};
            if (with_state) list.others = {{"fp8", state}};
            return training::Checkpoint(list);
        };
        const std::string path = folder.file(with_state ? "with" : "without");
        Parts first;
        amp::Fp8State of_first(first.net);
        first.steps(2);
        checkpoint(first, of_first).save(path);
        Parts second(77);
        amp::Fp8State of_second(second.net);
        checkpoint(second, of_second).load(path);
        second.steps(2);
        // Without the state it begins with current scaling.
        CHECK((second.weights() == whole.weights()) == with_state);
    }
}

TEST_CASE("fp8 delayed: a Trainer's checkpoints hold the history", "[training]") {
    const Folder folder;
    const auto options = [](const std::string& path) {
        return training::TrainerOptions{.epochs = 2,
                                        .precision = training::Precision::fp8,
                                        .fp8 = fp8,
                                        .checkpoints = path,
                                        .resume = true};
    };
    const auto loss = [](const Parts& parts) {
        return [&parts](const data::Batch& batch) { return parts.loss(batch.x); };
    };
    Parts whole;
    training::Trainer(whole.net, *whole.optimizer, options(folder.file("whole")))
        .fit(*whole.loader, loss(whole));
    Parts first;
    training::TrainerOptions o = options(folder.file("parts"));
    training::Trainer* running = nullptr;
    o.on_step = [&](const training::TrainingStatus& now) {
        if (now.step == 5) running->stop();
    };
    training::Trainer stopped(first.net, *first.optimizer, o);
    running = &stopped;
    CHECK(stopped.fit(*first.loader, loss(first)) == training::Ended::stopped);
    Parts second(77);
    second.loader.emplace(Parts().loader->dataset(), data::DataLoaderOptions{.batch_size = 16});
    training::Trainer(second.net, *second.optimizer, options(folder.file("parts")))
        .fit(*second.loader, loss(second));
    CHECK(second.weights() == whole.weights());
}

TEST_CASE("fp8 delayed: a Trainer resumes trainings of another precision or recipe", "[training]") {
    const Folder folder;
    Parts parts;
    std::int64_t epochs = 0;
    const auto train = [&](training::Precision precision, amp::Recipe recipe) {
        training::TrainerOptions options{.epochs = ++epochs,
                                         .precision = precision,
                                         .fp8 = {.recipe = recipe, .least_size = 16},
                                         .checkpoints = folder.file("one"),
                                         .resume = true,
                                         .others = {{"fp8", *parts.optimizer}}};  // a name of the user
        training::Trainer trainer(parts.net, *parts.optimizer, options);
        CHECK(trainer.fit(*parts.loader, [&](const data::Batch& batch) { return parts.loss(batch.x); }) ==
              training::Ended::finished);
    };
    using training::Precision;
    train(Precision::bfloat16, amp::Recipe::current);
    train(Precision::fp8, amp::Recipe::delayed);
    CHECK(amp::Fp8State(parts.net).state_dict().size() == 6);
    train(Precision::fp8, amp::Recipe::current);
    train(Precision::fp8, amp::Recipe::delayed);
    train(Precision::float32, amp::Recipe::current);
}
