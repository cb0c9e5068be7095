// training::Trainer against the equivalent loop, and every way in which it ends.
#include <catch2/catch.hpp>
#include <csignal>

#include "mezzo/data/loader.h"
#include "mezzo/data/transforms.h"
#include "mezzo/mezzo.h"
#include "mezzo/train/checkpoint.h"
#include "mezzo/train/progress.h"
#include "mezzo/train/stop_signals.h"
#include "mezzo/train/trainer.h"
#include "tests/support/folder.h"
#include "tests/support/support.h"
#include "tests/train/trainer_parts.h"

using namespace mezzo;
using Catch::Matchers::Contains;
using test::Folder;
using test::TrainerLog;
using test::TrainerParts;
using training::Ended;
using training::Precision;
using training::Trainer;
using training::TrainerOptions;
using training::TrainingStatus;

TEST_CASE("trainer: the plain loop in float32, bfloat16 and float16, bit for bit", "[training]") {
    for (const Device device : test::devices())
        for (const Precision precision : {Precision::float32, Precision::bfloat16, Precision::float16}) {
            TrainerParts by_hand(5, 0.05, device);
            optim::CosineAnnealingLR schedule(*by_hand.optimizer, {.t_max = 14});
            amp::GradScaler scaler({.init_scale = 1024, .enabled = precision == Precision::float16});
            for (int epoch = 0; epoch < 2; ++epoch)
                for (const data::Batch batch : *by_hand.loader) {
                    Tensor loss;
                    {
                        const amp::Autocast scope(
                            {.dtype = precision == Precision::bfloat16 ? bfloat16 : float16,
                             .enabled = precision != Precision::float32});
                        loss = by_hand.loss()(batch);
                    }
                    scaler.scale(loss).backward();
                    scaler.unscale_(*by_hand.optimizer);
                    nn::clip_grad_norm_(by_hand.net.parameters(), 0.5);
                    scaler.step(*by_hand.optimizer);
                    scaler.update();
                    by_hand.optimizer->zero_grad();
                    schedule.step();
                }
            TrainerParts trained(5, 0.05, device);
            optim::CosineAnnealingLR same_schedule(*trained.optimizer, {.t_max = 14});
            Trainer trainer(trained.net, *trained.optimizer,
                            {.epochs = 2,
                             .precision = precision,
                             .scaler = {.init_scale = 1024},
                             .max_norm = 0.5,
                             .scheduler = &same_schedule});
            CHECK(trainer.fit(*trained.loader, trained.loss()) == Ended::finished);
            CHECK(test::same_bits(trained.weights(), by_hand.weights()));
            CHECK(trainer.status().step == 14);
            CHECK(trainer.status().epoch == 2);
            CHECK(trainer.scaler().is_enabled() == (precision == Precision::float16));
        }
}

TEST_CASE("trainer: accumulation is the larger batch, with what is left of an epoch", "[training]") {
    TrainerParts large, small;
    large.loader.emplace(test::TrainingRun::data(),
                         data::DataLoaderOptions{.batch_size = 24, .drop_last = true});
    small.loader.emplace(test::TrainingRun::data(),
                         data::DataLoaderOptions{.batch_size = 8, .drop_last = true});
    large.net.eval();
    const auto without_dropout = [](TrainerParts& parts) {
        return [&](const data::Batch& batch) {
            parts.net.eval();
            return cross_entropy(parts.net(batch.x), batch.y);
        };
    };
    // 2 batches of 24 against 6 of 8: the same number of steps.
    Trainer(large.net, *large.optimizer).fit(*large.loader, without_dropout(large));
    Trainer accumulating(small.net, *small.optimizer, {.accumulate = 3});
    accumulating.fit(*small.loader, without_dropout(small));
    CHECK(accumulating.status().step == 2);
    const test::Tolerance allowed{.relative = 1e-5, .absolute = 1e-6};
    CHECK(test::difference(small.weights(), large.weights(), allowed).empty());
    // 7 batches in groups of 4: the second step has 3 batches, and takes their mean.
    TrainerParts rest, by_hand;
    manual_seed(1);
    Trainer(rest.net, *rest.optimizer, {.accumulate = 4}).fit(*rest.loader, rest.loss());
    manual_seed(1);
    int count = 0;
    for (const data::Batch batch : *by_hand.loader) {
        (by_hand.loss()(batch) * (count < 4 ? 1.0 / 4 : 1.0 / 3)).backward();
        if (++count % 4 != 0 && count != 7) continue;
        by_hand.optimizer->step();
        by_hand.optimizer->zero_grad();
    }
    CHECK(test::same_bits(rest.weights(), by_hand.weights()));
}

TEST_CASE("trainer: evaluation, early stopping, callbacks and logs", "[training]") {
    const Folder folder;
    TrainerParts parts;
    TrainerLog rows;
    optim::AveragedModel average(parts.net);
    const double accuracy[] = {0.5, 0.4, 0.7, 0.6, std::nan(""), 0.9};
    int evaluations = 0, epochs = 0;
    std::vector<std::int64_t> steps;
    Trainer trainer(parts.net, *parts.optimizer,
                    {.epochs = 9,
                     .precision = Precision::float16,
                     .average = &average,
                     .evaluate =
                         [&] {
                             CHECK_FALSE(parts.net.training());
                             CHECK(grad_enabled() == false);
                             CHECK(amp::autocast_enabled(DeviceType::cpu));
                             return io::Metrics{{"accuracy", accuracy[evaluations++]}};
                         },
                     .monitor = "accuracy",
                     .patience = 2,
                     .log_every = 5,
                     .logs = {&rows},
                     .on_step = [&](const TrainingStatus& now) { steps.push_back(now.step); },
                     .on_epoch = [&](const TrainingStatus& now) { CHECK(now.epoch == ++epochs); },
                     .checkpoints = folder.file("run"),
                     .keep_last = 1,
                     .keep_best = 1});
    CHECK(trainer.fit(*parts.loader, parts.loss()) == Ended::early);
    CHECK(evaluations == 5);
    CHECK(epochs == 5);
    CHECK(parts.net.training());
    CHECK(steps.size() == 35);
    CHECK(average.averaged() == 35);
    CHECK(rows.steps ==
          std::vector<std::int64_t>{5, 7, 7, 10, 14, 14, 15, 20, 21, 21, 25, 28, 28, 30, 35, 35});
    CHECK(rows.rows[2] == io::Metrics{{"accuracy", 0.5}});
    CHECK(rows.rows[0].size() == 4);
    CHECK(rows.rows[0][0].first == "loss");
    CHECK(rows.rows[0][0].second > 0.5);
    CHECK(rows.rows[0][2] == std::pair<std::string, double>("scale", 65536));
    CHECK(rows.flushes == 6);  // before each checkpoint, and at the end
    CHECK(folder.listing() == "run ");
    const training::CheckpointFolder run(folder.file("run"), {.keep_best = 1, .metric = "accuracy"});
    CHECK(run.files().size() == 2);  // of the best epoch, the third, and of the last
    CHECK(run.best()[0].step == 21);
    Trainer lacking(parts.net, *parts.optimizer, {.evaluate = [] { return io::Metrics{}; }, .monitor = "f1"});
    CHECK_THROWS_WITH(lacking.fit(*parts.loader, parts.loss()), Contains("monitor is \"f1\""));
}

TEST_CASE("trainer: stopped anywhere and resumed it is the uninterrupted training", "[training]") {
    const auto options = [](const std::string& path, optim::ReduceLROnPlateau& plateau, TrainerParts& parts) {
        return TrainerOptions{
            .epochs = 3,
            .precision = Precision::float16,
            .accumulate = 2,
            .max_norm = 1,
            .plateau = &plateau,
            .evaluate =
                [&parts] {
                    return io::Metrics{{"norm", sum(square(parts.net(ones({2, 8})))).item<double>()}};
                },
            .monitor = "norm",
            .checkpoints = path,
            .checkpoint_every = 2,
            .resume = true};
    };
    const Folder folder;
    TrainerParts whole;
    optim::ReduceLROnPlateau whole_plateau(*whole.optimizer, {.patience = 0});
    CHECK(Trainer(whole.net, *whole.optimizer, options(folder.file("whole"), whole_plateau, whole))
              .fit(*whole.loader, whole.loss()) == Ended::finished);
    for (std::int64_t at = 1; at <= 12; ++at) {
        const std::string path = folder.file(std::to_string(at));
        int runs = 0;
        for (Ended ended = Ended::stopped; ended == Ended::stopped; ++runs) {
            REQUIRE(runs < 13);
            TrainerParts parts(runs == 0 ? 5 : 77,
                               runs == 0 ? 0.05 : 3);  // what is loaded counts, not what was there
            optim::ReduceLROnPlateau plateau(*parts.optimizer, {.patience = 0});
            TrainerOptions o = options(path, plateau, parts);
            Trainer* running = nullptr;
            o.on_step = [&](const TrainingStatus& now) {
                if (now.step % at == 0) running->stop();
            };
            Trainer trainer(parts.net, *parts.optimizer, o);
            running = &trainer;
            ended = trainer.fit(*parts.loader, parts.loss());
            if (ended == Ended::stopped) continue;
            CHECK(test::same_bits(parts.weights(), whole.weights()));
            CHECK(trainer.status().step == 12);
        }
        CHECK(runs > 1);
    }
}

TEST_CASE("trainer: accumulates as many batches after a resumption with another batch size", "[training]") {
    for (const std::int64_t batch_size : {2, 4, 8, 12}) {
        CAPTURE(batch_size);
        const Folder folder;
        std::int64_t step = 0;
        const auto fit = [&](std::int64_t size, std::int64_t stop_at) {
            TrainerParts parts;
            data::DataLoader loader(test::TrainingRun::data(), {.batch_size = size});  // of 52 samples
            Trainer* running = nullptr;
            std::vector<std::int64_t> samples;
            const auto on_step = [&](const TrainingStatus& now) {
                const std::int64_t at = loader.position().samples;
                samples.push_back(at == 0 ? 52 : at);  // 0: the next epoch
                if (now.step == stop_at) running->stop();
            };
            Trainer trainer(
                parts.net, *parts.optimizer,
                {.accumulate = 2, .on_step = on_step, .checkpoints = folder.path, .resume = true});
            running = &trainer;
            trainer.fit(loader, parts.loss());
            step = trainer.status().step;
            return samples;
        };
        CHECK(fit(4, 4) == std::vector<std::int64_t>{8, 16, 24, 32});
        const std::vector<std::int64_t> after = fit(batch_size, 0);
        std::int64_t expected = 32;
        for (const std::int64_t reached : after) {
            expected = std::min<std::int64_t>(52, expected + 2 * batch_size);
            CHECK(reached == expected);
        }
        CHECK(expected == 52);
        CHECK(step == 4 + std::int64_t(after.size()));
    }
}

TEST_CASE("trainer: killed in its last evaluation and resumed, a training is evaluated", "[training]") {
    const Folder folder;
    int evaluations = 0, epochs = 0;
    const auto fit = [&](const std::string& path, int failing) {
        TrainerParts parts;
        const auto evaluate = [&] {
            if (++evaluations == failing) throw std::runtime_error("killed");
            return io::Metrics{{"norm", sum(square(parts.net(ones({2, 8})))).item<double>()}};
        };
        Trainer trainer(parts.net, *parts.optimizer,
                        {.max_steps = 4,
                         .evaluate = evaluate,
                         .on_epoch = [&](const TrainingStatus&) { ++epochs; },
                         .checkpoints = path,
                         .checkpoint_every = 2,
                         .resume = true});
        const Ended ended = trainer.fit(*parts.loader, parts.loss());
        CHECK(ended == Ended::finished);
        return trainer.status().metrics;
    };
    const io::Metrics whole = fit(folder.file("whole"), 0);
    CHECK_THROWS_WITH(fit(folder.file("killed"), 2), "killed");
    CHECK(fit(folder.file("killed"), 0) == whole);
    CHECK(epochs == 2);
}

TEST_CASE("trainer: modules in eval mode stay so, also when the evaluation throws", "[training]") {
    TrainerParts parts;
    nn::Sequential net{nn::Linear(8, 12), nn::BatchNorm1d(12), nn::Linear(12, 3)};
    net.freeze();
    auto& norm = *net.named_modules()[2].second;
    norm.eval();
    net.named_modules()[3].second->unfreeze();
    const std::vector<double> before = net.state_dict().at("1.running_mean").to_vector<double>();
    optim::SGD optimizer(net.parameters(), {.lr = 0.1});
    const auto loss = [&](const data::Batch& batch) {
        CHECK(net.training());
        return cross_entropy(net(batch.x), batch.y);
    };
    int evaluations = 0;
    Trainer trainer(net, optimizer, {.epochs = 2, .evaluate = [&] {
                                         for (const auto& [path, module] : net.named_modules())
                                             CHECK_FALSE(module->training());
                                         if (++evaluations == 2) throw std::runtime_error("no test set");
                                         return io::Metrics{};
                                     }});
    CHECK_THROWS_WITH(trainer.fit(*parts.loader, loss), "no test set");
    CHECK_FALSE(norm.training());
    CHECK(net.training());
    CHECK(net.state_dict().at("1.running_mean").to_vector<double>() == before);
    CHECK(trainer.fit(*parts.loader, loss) == Ended::finished);  // both epochs were trained
    CHECK(trainer.status().step == 14);
    // A model that is in eval mode as a whole is put into train mode.
    net.eval();
    CHECK(Trainer(net, optimizer).fit(*parts.loader, loss) == Ended::finished);
    CHECK(norm.training());
}

TEST_CASE("trainer: losses in 16 bits are added up in float32", "[training]") {
    TrainerParts parts;
    Trainer trainer(parts.net, *parts.optimizer, {.log_every = 100});
    trainer.fit(*parts.loader,
                [&](const data::Batch& batch) { return parts.loss()(batch).to(float16) * 0 + 60000.0; });
    CHECK(trainer.status().loss == 60000);  // float16 ends at 65504
}

TEST_CASE("trainer: max_steps, signals, and folders that are in use", "[training]") {
    const Folder folder;
    TrainerParts parts;
    Trainer limited(parts.net, *parts.optimizer, {.epochs = 9, .max_steps = 10, .checkpoints = folder.path});
    CHECK(limited.fit(*parts.loader, parts.loss()) == Ended::finished);
    CHECK(limited.status().step == 10);
    CHECK(limited.status().epoch == 1);
    CHECK(limited.status().steps == 10);
    Trainer again(parts.net, *parts.optimizer, {.checkpoints = folder.path});
    CHECK_THROWS_WITH(again.fit(*parts.loader, parts.loss()),
                      Contains("has checkpoints; set .resume = true"));

    TrainerParts resumed;
    Trainer more(resumed.net, *resumed.optimizer, {.epochs = 2, .checkpoints = folder.path, .resume = true});
    CHECK(more.fit(*resumed.loader, resumed.loss()) == Ended::finished);
    CHECK(more.status().step == 14);

    training::StopSignals::clear();
    for (const int signal : {SIGTERM, SIGINT}) {
        TrainerParts stopped;
        struct sigaction before {};
        sigaction(signal, nullptr, &before);
        std::int64_t seen = 0;
        Trainer trainer(stopped.net, *stopped.optimizer, {.on_step = [&](const TrainingStatus& now) {
                            seen = now.step;
                            if (now.step == 3) std::raise(signal);
                        }});
        CHECK(trainer.fit(*stopped.loader, stopped.loss()) == Ended::stopped);
        CHECK(seen == 3);
        CHECK(training::StopSignals::last() == signal);
        CHECK(trainer.fit(*stopped.loader, stopped.loss()) == Ended::stopped);  // until it is cleared
        CHECK(seen == 3);
        training::StopSignals::clear();
        CHECK(trainer.fit(*stopped.loader, stopped.loss()) == Ended::finished);
        struct sigaction now {};
        sigaction(signal, nullptr, &now);
        CHECK(now.sa_handler == before.sa_handler);
    }
}

TEST_CASE("trainer: usable after an exception, and strict about options", "[training]") {
    TrainerParts parts, untouched;
    Trainer trainer(parts.net, *parts.optimizer, {.accumulate = 4});
    int calls = 0;
    CHECK_THROWS_WITH(trainer.fit(*parts.loader,
                                  [&](const data::Batch& batch) {
                                      if (++calls == 3) throw std::runtime_error("no loss today");
                                      return parts.loss()(batch);
                                  }),
                      "no loss today");
    manual_seed(2);
    parts.loader->set_epoch(0);
    CHECK(trainer.fit(*parts.loader, parts.loss()) == Ended::finished);
    manual_seed(2);
    Trainer(untouched.net, *untouched.optimizer, {.accumulate = 4}).fit(*untouched.loader, untouched.loss());
    const test::Tolerance allowed{.relative = 0, .absolute = 0};
    CHECK(test::difference(parts.weights(), untouched.weights(), allowed).empty());

    const auto refused = [&](const TrainerOptions& options, const char* text) {
        CHECK_THROWS_WITH(Trainer(parts.net, *parts.optimizer, options), Contains(text));
    };
    refused({.epochs = 0}, "epochs is 0");
    refused({.accumulate = 0}, "accumulate is 0");
    refused({.log_every = 0}, "log_every is 0");
    refused({.max_steps = -1}, "max_steps is -1");
    refused({.max_norm = std::nan("")}, "max_norm is nan");
    refused({.patience = 1}, "need evaluate and monitor");
    refused({.keep_best = 1}, "need evaluate and monitor");
    refused({.evaluate_every = -1}, "evaluate_every -1");
    refused({.evaluate_every = 1}, "evaluate_every is 1, and there is no evaluate");
    TrainerParts cast;
    amp::Handle preset = amp::initialize(cast.net, *cast.optimizer, {.opt_level = "O2"});
    refused({.precision = Precision::float16, .preset = &preset},
            "precision 2 and accumulate 1 with a preset");
    refused({.preset = &preset, .accumulate = 2}, "precision 0 and accumulate 2 with a preset");
    CHECK_THROWS_WITH(trainer.load_state_dict({}), Contains("its state is one entry"));
    CHECK_THROWS_WITH(trainer.load_state_dict({{"progress", full({6}, -1)}}),
                      Contains("counter 0 of its state is -1"));
}

TEST_CASE("trainer: stop() before fit()", "[training]") {
    TrainerParts parts;
    Trainer trainer(parts.net, *parts.optimizer, {.epochs = 1});
    trainer.stop();
    CHECK(trainer.fit(*parts.loader, parts.loss()) == Ended::stopped);
    CHECK(trainer.status().step == 0);
    CHECK(trainer.fit(*parts.loader, parts.loss()) == Ended::finished);  // it has been stopped once
    CHECK(trainer.status().step == 7);
}

TEST_CASE("trainer: on_start gets the loaded status, and may stop the training", "[training]") {
    const Folder folder;
    std::vector<std::int64_t> starts;
    Trainer* running = nullptr;
    TrainerOptions options{.epochs = 2,
                           .on_start = [&](const TrainingStatus& now) { starts.push_back(now.step); },
                           .on_step =
                               [&](const TrainingStatus& now) {
                                   if (now.step == 9) running->stop();
                               },
                           .checkpoints = folder.file("run"),
                           .resume = true};
    TrainerParts first(5, 0.05), second(6, 3);
    Trainer stopped(first.net, *first.optimizer, options);
    running = &stopped;
    CHECK(stopped.fit(*first.loader, first.loss()) == Ended::stopped);
    options.on_start = [&](const TrainingStatus& now) {
        starts.push_back(now.step);
        CHECK(now.epoch == 1);
        CHECK(now.steps == 14);
        CHECK(now.lr == 0.05);
        CHECK(test::same_bits(second.weights(), first.weights()));
        if (starts.size() == 2) running->stop();
    };
    Trainer resumed(second.net, *second.optimizer, options);
    running = &resumed;
    CHECK(resumed.fit(*second.loader, second.loss()) == Ended::stopped);
    CHECK(resumed.status().step == 9);
    CHECK(resumed.fit(*second.loader, second.loss()) == Ended::finished);
    CHECK(resumed.status().step == 14);
    CHECK(starts == std::vector<std::int64_t>{0, 9, 9});
}

TEST_CASE("trainer: numbers at the end of int64 mean for ever", "[training]") {
    constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();
    for (const bool all : {false, true}) {
        TrainerParts parts;
        const Folder folder;
        const std::string path = folder.path + "/progress";
        std::FILE* const file = std::fopen(path.c_str(), "w");
        REQUIRE(file != nullptr);
        training::ProgressBar bar(file, {.interval = 0});
        Trainer trainer(parts.net, *parts.optimizer,
                        {.epochs = largest,
                         .max_steps = all ? 0 : 9,
                         .progress = &bar,
                         .on_step = [&](const TrainingStatus& s) {
                             if (s.step == 9) trainer.stop();
                         }});
        CHECK(trainer.fit(*parts.loader, parts.loss()) != Ended::early);
        CHECK(trainer.status().step == 9);
        CHECK(trainer.status().steps == (all ? 0 : 9));  // 0: not known
        bar.end_line();
        std::fclose(file);
    }
    TrainerParts parts;
    Trainer trainer(parts.net, *parts.optimizer, {.epochs = 2, .accumulate = largest});
    CHECK(trainer.fit(*parts.loader, parts.loss()) == Ended::finished);
    CHECK(trainer.status().step == 2);
}

TEST_CASE("trainer: nulls and numbers that are no enumerators", "[training]") {
    TrainerParts parts;
    const auto make = [&](const TrainerOptions& options) { Trainer(parts.net, *parts.optimizer, options); };
    CHECK_THROWS_WITH(make({.logs = {nullptr}}), Contains("Trainer: one of the 1 logs is null"));
    CHECK_THROWS_WITH(make({.precision = Precision(9)}), Contains("Trainer: precision is 9"));
    CHECK_THROWS_WITH(make({.better = training::Better(2)}), Contains("Trainer: better is 2"));
}
