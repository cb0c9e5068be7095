// training::Trainer with presets, evaluations between the ends of epochs, and the log of a resumed training.
#include <algorithm>
#include <catch2/catch.hpp>

#include "mezzo/data/transforms.h"
#include "mezzo/mezzo.h"
#include "mezzo/train/progress.h"
#include "mezzo/train/trainer.h"
#include "tests/support/folder.h"
#include "tests/support/support.h"
#include "tests/train/trainer_parts.h"

using namespace mezzo;
using test::Folder;
using test::TrainerLog;
using test::TrainerParts;
using training::Ended;
using training::Trainer;
using training::TrainerOptions;
using training::TrainingStatus;

TEST_CASE("trainer: a preset is the loop of scale_loss, also resumed", "[training]") {
    for (const std::string level : {"O0", "O1", "O2", "O3"}) {
        const Folder folder;
        const auto forward = [](TrainerParts& parts, amp::Handle& preset) {
            return [&](const data::Batch& batch) {
                return cross_entropy(preset.forward(parts.net, batch.x), batch.y);
            };
        };
        TrainerParts by_hand;
        amp::Handle handle = amp::initialize(by_hand.net, *by_hand.optimizer, {.opt_level = level});
        for (int epoch = 0; epoch < 2; ++epoch)
            for (const data::Batch batch : *by_hand.loader) {
                handle.scale_loss(forward(by_hand, handle)(batch), *by_hand.optimizer,
                                  [](const Tensor& loss) { loss.backward(); });
                nn::clip_grad_norm_(by_hand.net.parameters(), 0.5);
                by_hand.optimizer->step();
                by_hand.optimizer->zero_grad();
            }
        for (const std::uint64_t seed : {5, 77}) {  // the second one is resumed
            TrainerParts parts(seed);
            amp::Handle preset = amp::initialize(parts.net, *parts.optimizer, {.opt_level = level});
            Trainer* running = nullptr;
            Trainer trainer(parts.net, *parts.optimizer,
                            {.epochs = 2,
                             .preset = &preset,
                             .max_norm = 0.5,
                             .on_step =
                                 [&](const TrainingStatus& now) {
                                     if (now.step == 4) running->stop();
                                 },
                             .checkpoints = folder.file("run"),
                             .resume = true});
            running = &trainer;
            CHECK(trainer.fit(*parts.loader, forward(parts, preset)) ==
                  (seed == 5 ? Ended::stopped : Ended::finished));
            CHECK(trainer.status().scale.has_value() == (level != "O0"));
            CHECK(&trainer.scaler() == &preset.scaler());
            if (seed == 77) CHECK(test::same_bits(parts.weights(), by_hand.weights()));
        }
    }
}

TEST_CASE("trainer: evaluations between the ends of epochs", "[training]") {
    TrainerParts parts;
    std::vector<std::int64_t> steps;
    Trainer* running = nullptr;
    TrainerOptions options{.epochs = 2,
                           .evaluate =
                               [&] {
                                   steps.push_back(running->status().step);
                                   return io::Metrics{{"falls", 1.0 / double(steps.size())}};
                               },
                           .evaluate_every = 3};
    Trainer trainer(parts.net, *parts.optimizer, options);
    running = &trainer;
    CHECK(trainer.fit(*parts.loader, parts.loss()) == Ended::finished);
    CHECK(steps == std::vector<std::int64_t>{3, 6, 7, 9, 12, 14});
    steps.clear();
    parts.loader->set_epoch(0);
    options.monitor = "falls";
    options.patience = 1;
    Trainer hasty(parts.net, *parts.optimizer, options);  // ends within an epoch, after one evaluation
    running = &hasty;
    CHECK(hasty.fit(*parts.loader, parts.loss()) == Ended::early);
    CHECK(steps == std::vector<std::int64_t>{3, 6});
}

TEST_CASE("trainer: the log of a resumed training is that of an uninterrupted one", "[training]") {
    const Folder folder;
    TrainerLog whole, resumed;
    const auto train = [&](const std::string& path, TrainerLog& rows, std::int64_t dies_at) {
        TrainerParts parts;
        Trainer trainer(parts.net, *parts.optimizer,
                        {.epochs = 2,
                         .log_every = 2,
                         .logs = {&rows},
                         .on_step =
                             [&](const TrainingStatus& now) {
                                 if (now.step == dies_at) throw std::runtime_error("killed");
                             },
                         .checkpoints = path,
                         .checkpoint_every = 3,
                         .resume = true});
        return trainer.fit(*parts.loader, parts.loss());
    };
    CHECK(train(folder.file("whole"), whole, 0) == Ended::finished);
    CHECK(whole.steps == std::vector<std::int64_t>{2, 3, 4, 6, 7, 8, 9, 10, 12, 14});
    for (const std::int64_t dies_at : {4, 5, 11})  // after the checkpoints of steps 3, 3 and 9
        CHECK_THROWS_WITH(train(folder.file("killed"), resumed, dies_at), "killed");
    CHECK(train(folder.file("killed"), resumed, 0) == Ended::finished);
    for (std::size_t i = 0; i < resumed.steps.size(); ++i) {
        const auto at = std::find(whole.steps.begin(), whole.steps.end(), resumed.steps[i]);
        REQUIRE(at != whole.steps.end());
        CHECK(resumed.rows[i] == whole.rows[std::size_t(at - whole.steps.begin())]);
    }
}
