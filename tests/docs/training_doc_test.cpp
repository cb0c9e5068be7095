// Code of docs/guide/training.md and data.md: each block is a case here.
#include <catch2/catch.hpp>
#include <cstdio>
#include <fstream>
#include <optional>
#include <utility>

#include "mezzo/data/batch_loader.h"
#include "mezzo/data/loader.h"
#include "mezzo/data/preprocess.h"
#include "mezzo/data/subset.h"
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

TEST_CASE("training document: Muon with AdamW", "[training]") {
    mz::manual_seed(1);
    mz::nn::Sequential net(mz::nn::Linear(6, 8), mz::nn::ReLU(), mz::nn::Linear(8, 2));
    const mz::Tensor x = mz::randn({16, 6}), y = mz::randn({16, 2});
    mz::amp::GradScaler scaler;
    const double before = mz::mse_loss(net(x), y).item<double>();
    // begin
    mz::Tensors matrices, others;
    for (const mz::Tensor& parameter : net.parameters())
        (parameter.dim() == 2 ? matrices : others).push_back(parameter);
    mz::optim::Muon muon(matrices, {.adjust_lr_fn = mz::optim::MuonAdjustLr::match_rms_adamw});
    mz::optim::AdamW adamw(others);
    for (int step = 0; step < 20; ++step) {
        net.zero_grad();
        const mz::Tensor loss = mz::mse_loss(net(x), y);
        scaler.scale(loss).backward();
        scaler.step(muon);
        scaler.step(adamw);
        scaler.update();
    }
    // end
    CHECK(mz::mse_loss(net(x), y).item<double>() < before);
}

TEST_CASE("training document: groups of an optimizer", "[training]") {
    Net net;
    // begin
    mz::optim::AdamW optimizer({{.params = net.hidden.parameters(), .options = {.lr = 1e-4}},
                                {.params = net.head.parameters(), .options = {.lr = 1e-3, .beta2 = 0.99}}});
    optimizer.set_lr(1e-5, 0);                     // of the first group
    const double rate = optimizer.lr(1);           // of the second
    optimizer.set_option("weight_decay", 0.1, 1);  // any other option, by its name
    const double beta2 = optimizer.option("beta2", 1);
    // end
    CHECK(optimizer.lr() == 1e-5);
    CHECK(rate == 1e-3);
    CHECK(optimizer.option("weight_decay", 1) == 0.1);
    CHECK(beta2 == 0.99);
}

TEST_CASE("training document: less memory for the optimizer", "[training]") {
    mz::manual_seed(1);
    mz::nn::Linear net(64, 64);
    net.to(mz::bfloat16);
    const mz::Tensor x = mz::randn({16, 64}).to(mz::bfloat16), y = mz::zeros({16, 64}).to(mz::bfloat16);
    const double before = mz::mse_loss(net(x), y).item<double>();
    // begin
    mz::optim::AdamW lean(net.named_parameters(),
                          {.lr = 1e-4, .states = mz::optim::StatePrecision::eight_bit});
    lean.use_master_weights(mz::optim::MasterWeights::split);
    // end
    for (int step = 0; step < 50; ++step) {
        // begin
        lean.step_in_backward(mz::mse_loss(net(x), y));
        // end
    }
    CHECK(mz::mse_loss(net(x), y).item<double>() < before);
}

TEST_CASE("training document: LBFGS", "[training]") {
    mz::manual_seed(1);
    mz::nn::Linear net(3, 1);
    const mz::Tensor x = mz::randn({32, 3}), y = mz::sum(x, {1}, {.keepdim = true});
    // begin
    mz::optim::LBFGS lbfgs(net.parameters(), {.line_search_fn = mz::optim::LineSearch::strong_wolfe});
    const mz::Tensor first_loss = lbfgs.step([&] {
        lbfgs.zero_grad();
        const mz::Tensor loss = mz::mse_loss(net(x), y);
        loss.backward();
        return loss;
    });
    // end
    CHECK(mz::mse_loss(net(x), y).item<double>() < first_loss.item<double>() * 1e-6);
}

TEST_CASE("training document: parts of a data set, and a stream", "[data]") {
    const mz::test::Folder folder;
    const std::string path = folder.write("lines.txt", "one\ntwo\nthree\nfour\nfive\n");
    int steps = 0;
    const auto train_step = [&](const mz::Tensor& x, const mz::Tensor& y) {
        steps += int(x.size(1) == 2 && y.dtype() == mz::int64);
    };
    std::string read;
    const auto train_on = [&](const std::vector<std::string>& lines) { read += lines.back() + " "; };
    // begin
    struct Points {
        std::int64_t size() const { return 50; }
        std::pair<mz::Tensor, std::int64_t> get(std::int64_t i) const {
            return {mz::full({2}, double(i)), i % 3};
        }
    };
    const auto parts = mz::data::random_split(Points{}, {0.8, 0.2}, {.seed = 1});  // or {40, 10}
    mz::data::BatchLoader train(parts[0], {.batch_size = 8, .shuffle = true});
    for (const auto& [x, y] : train) train_step(x, y);  // [8, 2], and int64 [8]

    struct Lines {
        std::string path;
        struct Stream {
            std::ifstream file;
            std::optional<std::string> next() {
                std::string line;
                return std::getline(file, line) ? std::optional(line) : std::nullopt;
            }
        };
        Stream stream(std::int64_t) const { return {std::ifstream(path)}; }
    };
    mz::data::BatchLoader lines(Lines{path}, {.batch_size = 2, .num_workers = 1});
    for (const std::vector<std::string>& batch : lines) train_on(batch);
    // end
    CHECK(steps == 5);
    CHECK(read == "two four five ");
}
