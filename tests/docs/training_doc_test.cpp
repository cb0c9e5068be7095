// Code of docs/guide/training.md and data.md: each block is a case here.
#include <catch2/catch.hpp>
#include <cstdio>

#include "mezzo/data/batch_loader.h"
#include "mezzo/data/loader.h"
#include "mezzo/data/preprocess.h"
#include "mezzo/data/table.h"
#include "mezzo/data/transforms.h"
#include "mezzo/mezzo.h"
#include "mezzo/train/checkpoint.h"
#include "mezzo/train/progress.h"
#include "mezzo/train/stop_signals.h"
#include "mezzo/train/trainer.h"
#include "tests/support/folder.h"
#include "tests/train/training_run.h"

namespace mz = mezzo;

namespace {

using Catch::Matchers::Contains;

struct Net : mz::nn::Module {
    Net() : hidden(8, 12), head(12, 3) {}
    mz::Tensor operator()(const mz::Tensor& x) const { return head(mz::relu(hidden(x))); }
    mz::nn::Linear hidden, head;
    MEZZO_MODULE(Net, hidden, head)
};

double accuracy(const Net& net, mz::data::DataLoader& loader) {
    double right = 0, all = 0;
    for (const auto& [x, y] : loader) {
        right += mz::sum(mz::eq(mz::argmax(net(x), 1), y)).item<double>();
        all += double(y.size(0));
    }
    return right / all;
}

std::string csv(int rows) {
    std::string text = "width,height,kind\n";
    for (int i = 0; i < rows; ++i)
        text +=
            std::to_string(i % 7) + "," + std::to_string(i % 5 + 0.5) + (i % 2 == 0 ? ",cat\n" : ",dog\n");
    return text;
}

}  // namespace

TEST_CASE("training document: a trainer", "[training]") {
    const mz::test::Folder folder;
    const std::string runs = folder.file("runs");
    std::FILE* const bars = std::tmpfile();
    Net net;
    mz::data::DataLoader train_set(mz::test::TrainingRun::data(), {.batch_size = 8, .shuffle = true}),
        test_set(mz::test::TrainingRun::data(), {.batch_size = 8});
    // begin
    mz::optim::AdamW optimizer(net.named_parameters(), {.lr = 1e-2});
    mz::training::ProgressBar bar(bars);  // such as stderr
    mz::io::CsvWriter log(runs + ".csv");
    mz::training::Trainer trainer(net, optimizer,
                                  {.epochs = 4,
                                   .precision = mz::training::Precision::float16,
                                   .max_norm = 1,
                                   .evaluate =
                                       [&] {
                                           return mz::io::Metrics{{"accuracy", accuracy(net, test_set)}};
                                       },
                                   .monitor = "accuracy",
                                   .patience = 3,
                                   .logs = {&log},
                                   .progress = &bar,
                                   .checkpoints = runs,
                                   .keep_best = 1,
                                   .resume = true});
    const auto ended = trainer.fit(
        train_set, [&](const mz::data::Batch& batch) { return mz::cross_entropy(net(batch.x), batch.y); });
    if (ended == mz::training::Ended::stopped)
        std::printf("stopped after step %lld; start it again to go on\n",
                    static_cast<long long>(trainer.status().step));
    // end
    CHECK(trainer.status().step == 28);
    CHECK(ended == mz::training::Ended::finished);
    CHECK_FALSE(folder.read("runs.csv").empty());
    std::fclose(bars);
}

TEST_CASE("training document: a checkpoint of one's own loop", "[training]") {
    const mz::test::Folder folder;
    Net net, discriminator;
    mz::optim::AdamW optimizer(net.parameters());
    mz::amp::GradScaler scaler;
    mz::optim::AveragedModel average(net);
    mz::data::DataLoader loader(mz::test::TrainingRun::data(), {.batch_size = 8, .shuffle = true});
    const std::string run = folder.file("run");
    int trained = 0;
    const auto train_on = [&](const mz::data::Batch&) { ++trained; };
    // begin
    const mz::training::Checkpoint checkpoint({.model = net,
                                               .optimizer = optimizer,  // with its master weights
                                               .scaler = scaler,
                                               .average = average,
                                               .loader = loader,
                                               .others = {{"discriminator", discriminator}},
                                               .settings = {{"--lr", "1e-3"}}});
    const mz::training::CheckpointFolder folder_of_run(
        run, {.keep_last = 3, .keep_best = 1, .metric = "accuracy"});
    const mz::training::StopSignals signals;  // SIGTERM and SIGINT
    std::int64_t step = 0;
    if (const auto newest = folder_of_run.load_newest(checkpoint)) step = newest->step;
    for (bool stop = false; loader.epoch() < 3 && !stop;)
        for (const mz::data::Batch batch : loader) {
            train_on(batch);
            stop = signals.received();
            if (++step % 10 == 0 || stop) folder_of_run.save(checkpoint, {.step = step});
            if (stop) break;
        }
    // end
    CHECK(step == 21);
    CHECK(trained == 21);
    CHECK(folder_of_run.files().back().step == 20);
}

TEST_CASE("training document: workers", "[data]") {
    // begin
    struct Sentences {  // any sample type; get() is called from several threads
        std::vector<std::string> texts;
        std::int64_t size() const { return std::int64_t(texts.size()); }
        const std::string& get(std::int64_t i) const { return texts[std::size_t(i)]; }
    };
    const auto lengths = [](std::vector<std::string> batch) {
        std::vector<float> values;
        for (const std::string& text : batch) values.push_back(float(text.size()));
        return mz::Tensor::from(values, {std::int64_t(values.size())});
    };
    mz::data::BatchLoader loader(Sentences{{"a", "bb", "ccc", "dddd", "eeeee"}}, lengths,
                                 {.batch_size = 2, .num_workers = 2});
    double total = 0;
    for (const mz::Tensor& batch : loader) total += mz::sum(batch).item<double>();
    // end
    CHECK(total == 15);
}

TEST_CASE("training document: a table", "[data]") {
    const mz::test::Folder folder;
    const std::string path = folder.write("animals.csv", csv(100));
    // begin
    const mz::data::Table table = mz::data::read_csv(path);
    const mz::data::Categories kinds = table.categories("kind");
    const auto [train, test] = mz::data::train_test_split({table.numbers({"width", "height"}), kinds.codes},
                                                          {.test_size = 0.2, .stratify = true});
    mz::data::StandardScaler scaler;
    scaler.fit(train.x);  // and {"features", scaler} among the checkpoint's others
    mz::data::DataLoader loader({scaler.transform(train.x), train.y}, {.batch_size = 16, .shuffle = true});
    // end
    CHECK(loader.size() == 5);
    CHECK(test.size() == 20);
    CHECK(kinds.names == std::vector<std::string>{"cat", "dog"});
}
