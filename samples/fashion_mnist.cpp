// Trains a classifier of clothes (Fashion-MNIST) in float32, bfloat16 or float16 and prints its accuracy
// after every epoch.
#include <fmt/format.h>
#include <mezzo/data/loader.h>
#include <mezzo/data/prefetch.h>
#include <mezzo/data/transforms.h>
#include <mezzo/mezzo.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <numbers>
#include <optional>
#include <stdexcept>
#include <string>

#include "program.h"

namespace mz = mezzo;

namespace {

struct Settings {
    std::string data = "/usr/share/datasets/fashion-mnist";
    std::string precision = "fp16";
    mz::Device device;
    std::int64_t epochs = 8, batch = 128, hidden = 256;
    double lr = 1e-3;
    std::uint64_t seed = 1;
    std::optional<int> prefetch;
    bool progress = false;
    std::string trace;  // folder for the data that tools/torch_fashion.py repeats in PyTorch
    std::int64_t trace_steps = 100;
};

// Mean and standard deviation of the training images, of pixels in [0, 1].
constexpr double pixel_mean = 0.2860, pixel_stddev = 0.3530;

mz::data::DataLoader make_loader(const Settings& s, bool train) {
    return mz::data::DataLoader(mz::data::fashion_mnist({.train = train, .directory = s.data}),
                                {.batch_size = train ? s.batch : 1000,
                                 .shuffle = train,
                                 .seed = s.seed,
                                 .mean = pixel_mean,
                                 .stddev = pixel_stddev,
                                 .device = s.device,
                                 .prefetch = s.prefetch.value_or(mz::data::automatic_prefetch)});
}

mz::nn::Sequential make_model(const Settings& s) {
    return mz::nn::Sequential{mz::nn::Flatten(), mz::nn::Linear(784, s.hidden),
                              mz::nn::ReLU(),    mz::nn::Linear(s.hidden, s.hidden / 2),
                              mz::nn::ReLU(),    mz::nn::Linear(s.hidden / 2, 10)};
}

// Writes initial weights, the first batches and their losses: raw little-endian arrays.
class Trace {
public:
    Trace(const Settings& s, const mz::nn::Module& net) : steps_left_(s.trace.empty() ? 0 : s.trace_steps) {
        if (steps_left_ == 0) return;
        open(batches_, s.trace + "/batches.bin");
        open(losses_, s.trace + "/losses.bin");
        std::ofstream weights;
        open(weights, s.trace + "/weights.bin");
        for (const mz::Tensor& parameter : net.parameters()) write(weights, parameter.to_vector<float>());
        close(weights);
    }
    // Adds one step: x and y as the model saw them, and the loss.
    void add(const mz::data::Batch& batch, const mz::Tensor& loss) {
        if (steps_left_ == 0) return;
        --steps_left_;
        write(batches_, std::vector<std::int64_t>{batch.x.size(0)});
        write(batches_, batch.x.to_vector<float>());
        write(batches_, batch.y.to_vector<std::int64_t>());
        write(losses_, std::vector<double>{loss.item<double>()});
        if (steps_left_ == 0) {
            close(batches_);
            close(losses_);
        }
    }

private:
    static void open(std::ofstream& file, const std::string& path) {
        file.open(path, std::ios::binary);
        if (!file) throw std::runtime_error("--trace: cannot write " + path);
    }
    template <class T> static void write(std::ofstream& file, const std::vector<T>& values) {
        file.write(reinterpret_cast<const char*>(values.data()),
                   static_cast<std::streamsize>(values.size() * sizeof(T)));
        check_written(file);
    }
    static void close(std::ofstream& file) {
        file.close();
        check_written(file);
    }
    static void check_written(const std::ofstream& file) {
        if (!file) throw std::runtime_error("--trace: writing failed; is the disk full?");
    }
    std::int64_t steps_left_;
    std::ofstream batches_, losses_;
};

// Returns the fraction of samples whose largest logit is the right one.
double accuracy(const Settings& s, mz::nn::Sequential& net, mz::data::DataLoader& loader) {
    const mz::NoGrad no_grad;
    const mz::amp::Autocast scope(program::autocast(s.precision));
    net.eval();
    mz::Tensor right = mz::zeros({}, {.dtype = mz::int64, .device = s.device});
    for (const auto& [x, y] : loader) right = right + mz::sum(mz::eq(mz::argmax(net(x), 1), y));
    net.train();
    return double(right.item<std::int64_t>()) / double(loader.dataset().size());
}

// Trains for one epoch and returns the mean loss over its batches.
double train_epoch(const Settings& s, std::int64_t epoch, mz::nn::Sequential& net,
                   mz::optim::Optimizer& optimizer, mz::amp::GradScaler& scaler, mz::data::DataLoader& loader,
                   Trace& trace) {
    mz::Tensor total = mz::zeros({}, {.device = s.device});
    std::int64_t done = 0;
    for (const mz::data::Batch batch : loader) {
        mz::Tensor loss;
        {
            const mz::amp::Autocast scope(program::autocast(s.precision));
            loss = mz::cross_entropy(net(batch.x), batch.y);
        }
        scaler.scale(loss).backward();
        scaler.step(optimizer);
        scaler.update();
        optimizer.zero_grad();
        total = total + loss.detach();
        trace.add(batch, loss);
        if (++done % 20 == 0 && s.progress)
            program::tell(
                fmt::format("\repoch {} of {}: batch {} of {}", epoch + 1, s.epochs, done, loader.size()));
    }
    if (s.progress) program::tell(fmt::format("\r{:50}\r", ""));
    return total.item<double>() / double(loader.size());
}

void run(const Settings& s) {
    mz::data::DataLoader train_set = make_loader(s, true), test_set = make_loader(s, false);
    mz::data::DataLoader train_images(train_set.dataset(),
                                      {.batch_size = 1000,
                                       .mean = pixel_mean,
                                       .stddev = pixel_stddev,
                                       .device = s.device});  // in order, for the accuracy
    mz::manual_seed(s.seed);
    mz::nn::Sequential net = make_model(s);
    net.to(s.device);
    mz::optim::Adam optimizer(net.named_parameters(), {.lr = s.lr});
    // Only float16 has such a small range that its gradients need scaling.
    mz::amp::GradScaler scaler({.enabled = s.precision == "fp16"});
    Trace trace(s, net);

    fmt::print("Fashion-MNIST, {}, batch {}, Adam lr {:g} with cosine decay, seed {}\n{}\n\n", s.precision,
               s.batch, s.lr, s.seed, mz::hardware_name(s.device));
    fmt::print("{:>5} {:>9} {:>11} {:>10} {:>8}\n", "epoch", "loss", "train acc", "test acc", "s");
    for (std::int64_t epoch = 0; epoch < s.epochs; ++epoch) {
        const auto start = std::chrono::steady_clock::now();
        optimizer.set_lr(s.lr * 0.5 * (1 + std::cos(std::numbers::pi * double(epoch) / double(s.epochs))));
        const double loss = train_epoch(s, epoch, net, optimizer, scaler, train_set, trace);
        const double seconds =
            std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        fmt::print("{:>5} {:>9.4f} {:>10.2f}% {:>9.2f}% {:>8.2f}\n", epoch + 1, loss,
                   100 * accuracy(s, net, train_images), 100 * accuracy(s, net, test_set), seconds);
        std::fflush(stdout);
    }
    if (scaler.is_enabled())
        fmt::print("\nscale {:g} at the end, {} steps applied, {} skipped\n", scaler.get_scale(),
                   optimizer.applied_steps(), optimizer.skipped_steps());
}

int parse_and_run(int argc, char** argv) {
    Settings s;
    std::string device;
    int threads = mz::num_threads();
    bool progress = false;
    CLI::App app{"Trains a classifier on Fashion-MNIST."};
    app.option_defaults()->always_capture_default();
    app.add_option("--data", s.data, "folder of the four IDX files, plain or gzip");
    program::add_precision(app, s.precision);
    app.add_option("--epochs", s.epochs, "passes over the 60,000 training images")
        ->transform(program::positive());
    app.add_option("--batch", s.batch, "images per step")->transform(program::positive());
    app.add_option("--hidden", s.hidden, "width of the first hidden layer; the second has half of it")
        ->transform(program::in_range<std::int64_t>(2, std::int64_t{1} << 20));
    app.add_option("--lr", s.lr, "learning rate at the start")->transform(program::learning_rate());
    program::add_seed(app, s.seed, "of weights and order");
    program::add_device(app, device);
    app.add_option(
           "--prefetch", s.prefetch,
           "batches copied to a GPU ahead of their use; default: 2 where such copies passed its self-check")
        ->transform(program::in_range(0, 16));
    program::add_threads(app, threads);
    app.add_flag("--progress", progress, "show a progress line even when standard error is no terminal");
    app.add_option("--trace", s.trace, "write weights, first batches and losses into this folder")
        ->check(CLI::ExistingDirectory);
    app.add_option("--trace-steps", s.trace_steps, "steps to write")->transform(program::positive());
    if (const int code = program::parse(app, argc, argv); code >= 0) return code;
    s.device = device.empty() ? mz::best_device() : mz::parse_device(device.c_str());
    s.progress = progress || isatty(STDERR_FILENO) == 1;
    mz::set_num_threads(threads);
    run(s);
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    mz::set_log_sink(program::log_to_stderr);
    return program::run("fashion_mnist", [&] { return parse_and_run(argc, argv); });
}
