// Trains a classifier on the columns of a CSV file, using only training::Trainer, tables and scalers.
#include <fmt/format.h>
#include <mezzo/data/loader.h>
#include <mezzo/data/preprocess.h>
#include <mezzo/data/table.h>
#include <mezzo/data/transforms.h>
#include <mezzo/mezzo.h>
#include <mezzo/train/progress.h>
#include <mezzo/train/stop_signals.h>
#include <mezzo/train/trainer.h>

#include <cstdio>
#include <string>

#include "program.h"
#include "training.h"

namespace mz = mezzo;

namespace {

struct Settings {
    std::string data, target, precision = "fp32", checkpoints, log, device;
    std::int64_t epochs = 20, batch = 32, hidden = 32, patience = 0;
    double lr = 1e-2, test_size = 0.25;
    std::uint64_t seed = 1;
    int threads = mz::num_threads();
    bool resume = false;

    // Settings that must be the same when a training is resumed.
    mz::io::Metadata shown() const {
        return {{"--data", data},
                {"--target", target},
                {"--precision", precision},
                {"--batch", fmt::format("{}", batch)},
                {"--hidden", fmt::format("{}", hidden)},
                {"--lr", fmt::format("{}", lr)},
                {"--test-size", fmt::format("{}", test_size)},
                {"--seed", fmt::format("{}", seed)}};
    }
};

struct Data {
    std::vector<std::string> features, classes;
    mz::data::SplitDataset parts;
    mz::data::StandardScaler scaler;
};

// All numeric columns except the target are features.
Data load(const Settings& s) {
    const mz::data::Table table = mz::data::read_csv(s.data);
    const mz::data::Categories target = table.categories(s.target);
    Data data;
    data.classes = target.names;
    for (const mz::data::Column& column : table.columns())
        if (column.name != s.target && column.kind != mz::data::ColumnKind::text)
            data.features.push_back(column.name);
    if (data.features.empty())
        throw std::runtime_error("--data: " + s.data + ": no column of numbers is left");
    data.parts = mz::data::train_test_split({table.numbers(data.features), target.codes},
                                            {.test_size = s.test_size, .stratify = true, .seed = s.seed});
    data.scaler.fit(data.parts.train.x);
    for (mz::data::Dataset* const part : {&data.parts.train, &data.parts.test})
        part->x = data.scaler.transform(part->x);
    return data;
}

double accuracy(const mz::nn::Sequential& net, const mz::data::Dataset& data, mz::Device device) {
    const mz::Tensor predicted = mz::argmax(net(data.x.to(device)), 1);
    return mz::sum(mz::eq(predicted, data.y.to(device))).item<double>() / double(data.size());
}

int train(const Settings& s) {
    Data data = load(s);
    const mz::Device device = s.device.empty() ? mz::best_device() : mz::parse_device(s.device.c_str());
    mz::manual_seed(s.seed);
    mz::nn::Sequential net{mz::nn::Linear(std::int64_t(data.features.size()), s.hidden), mz::nn::ReLU(),
                           mz::nn::Linear(s.hidden, std::int64_t(data.classes.size()))};
    net.to(device);
    mz::optim::AdamW optimizer(net.named_parameters(), {.lr = s.lr});
    mz::data::DataLoader loader(data.parts.train,
                                {.batch_size = s.batch, .shuffle = true, .seed = s.seed, .device = device});
    mz::training::ProgressBar bar(stderr, {.label = "train_csv"});
    std::optional<mz::io::CsvWriter> log;
    if (!s.log.empty()) log.emplace(s.log);
    mz::training::TrainerOptions options{
        .epochs = s.epochs,
        .precision = program::trainer_precision(s.precision),
        .fp8 = {.least_size = 16},
        .evaluate =
            [&] {
                return mz::io::Metrics{{"accuracy", accuracy(net, data.parts.test, device)}};
            },
        .monitor = "accuracy",
        .patience = s.patience,
        .progress = &bar,
        .checkpoints = s.checkpoints,
        .resume = s.resume,
        .others = {{"features", data.scaler}},
        .settings = s.shown()};
    if (log) options.logs = {&*log};
    mz::training::Trainer trainer(net, optimizer, options);

    fmt::print("{} features, {} classes, {} samples, {} for tests, {}\n", data.features.size(),
               data.classes.size(), data.parts.train.size(), data.parts.test.size(), s.precision);
    std::fflush(stdout);
    const mz::training::Ended ended = trainer.fit(
        loader, [&](const mz::data::Batch& batch) { return mz::cross_entropy(net(batch.x), batch.y); });
    if (ended == mz::training::Ended::stopped) {
        fmt::print("stopped by a signal after step {}{}\n", trainer.status().step,
                   s.checkpoints.empty() ? "" : "; --resume goes on from " + s.checkpoints);
        return 128 + mz::training::StopSignals::last();
    }
    const mz::NoGrad no_grad;
    fmt::print("{} steps{}, test accuracy {:.2f} %\n", trainer.status().step,
               ended == mz::training::Ended::early ? ", ended early" : "",
               100 * accuracy(net, data.parts.test, device));
    return 0;
}

int parse_and_run(int argc, char** argv) {
    Settings s;
    CLI::App app{"Trains a classifier on the columns of a CSV file."};
    app.option_defaults()->always_capture_default();
    app.add_option("--data", s.data, "CSV file with a header; its columns of numbers are the features")
        ->required();
    app.add_option("--target", s.target, "column of the classes")->required();
    program::add_precision(app, s.precision);
    app.add_option("--epochs", s.epochs, "passes over the training samples")->transform(program::positive());
    app.add_option("--batch", s.batch, "samples per step")->transform(program::positive());
    app.add_option("--hidden", s.hidden, "width of the hidden layer")
        ->transform(program::in_range<std::int64_t>(1, std::int64_t{1} << 20));
    app.add_option("--lr", s.lr, "learning rate")->transform(program::learning_rate());
    app.add_option("--test-size", s.test_size, "share of the samples that are for tests")
        ->transform(program::in_range(0.001, 0.999));
    app.add_option("--patience", s.patience, "end after so many epochs without a better accuracy; 0: never")
        ->transform(program::not_negative());
    program::add_seed(app, s.seed, "of split, weights and order");
    program::add_device(app, s.device);
    program::add_threads(app, s.threads);
    app.add_option("--checkpoints", s.checkpoints, "folder for a checkpoint after each epoch");
    app.add_flag("--resume", s.resume, "go on from the newest checkpoint, if there is one")
        ->needs("--checkpoints");
    app.add_option("--log", s.log, "CSV file for losses and accuracies");
    if (const int code = program::parse(app, argc, argv); code >= 0) return code;
    mz::set_num_threads(s.threads);
    return train(s);
}

}  // namespace

int main(int argc, char** argv) {
    return program::run("train_csv", [&] { return parse_and_run(argc, argv); });
}
