// Trains one MLP on random data in three precisions: in float32, under bfloat16 autocast, and under float16
// autocast with and without a gradient scaler. Prints what each costs. The default size takes seconds on two
// CPU cores; --preset recipe is the size of PyTorch's AMP recipe. --precision trains one of them alone. Under mezzo-run
// each rank takes its part of every batch.
#include <fmt/format.h>
#include <mezzo/mezzo.h>

#include <chrono>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

#include "program.h"
#include "training/places.h"
#include "training/ranks.h"
#include "training/step_profile.h"

namespace mz = mezzo;

namespace {

struct Settings {
    std::int64_t batch = 256, width = 1024, layers = 3, batches = 20, epochs = 3;
    double lr = 1e-3;
    std::uint64_t seed = 1;
    mz::Device device;
    std::string precision = "all", profile;
};

struct Mode {
    const char* precision;  // as --precision calls it; fp16 alone has a scaler
    const char* name;
    mz::Dtype dtype;  // of products; float32: no autocast
    bool scaler = false;
};

struct Result {
    double seconds = 0;
    double loss = 0;  // of the last batch
    std::size_t peak_bytes = 0;
    std::int64_t steps = 0, skipped = 0;
};

mz::nn::Sequential make_model(const Settings& s) {
    mz::nn::Sequential net;
    for (std::int64_t i = 0; i < s.layers; ++i) {
        if (i > 0) net.push_back(mz::nn::ReLU());
        net.push_back(mz::nn::Linear(s.width, s.width));
    }
    return net;
}

// Under autocast the output has the 16-bit dtype and the loss is float32.
void check_dtypes(const Mode& mode, const mz::Tensor& output, const mz::Tensor& loss) {
    if (output.dtype() != mode.dtype || loss.dtype() != mz::float32)
        throw std::runtime_error(fmt::format("{}: output is {} (expected {}), loss is {} (expected float32)",
                                             mode.name, mz::name(output.dtype()), mz::name(mode.dtype),
                                             mz::name(loss.dtype())));
}

// Trains a new model, the same for every mode, on the given batches.
Result train(const Settings& s, const mz::distributed::Group& group, const Mode& mode,
             const std::vector<mz::data::Batch>& data, std::int64_t epochs, const std::string& profile = {}) {
    mz::manual_seed(s.seed);
    mz::nn::Sequential net = make_model(s);
    net.to(s.device);
    mz::distributed::DataParallel parallel(net, group);
    mz::optim::SGD optimizer(net.parameters(), {.lr = s.lr});
    mz::amp::GradScaler scaler({.enabled = mode.scaler});
    const auto steps = epochs * std::int64_t(data.size());
    training::StepProfile profiled(profile, group, net, s.device, steps);

    mz::empty_cache(s.device);
    mz::reset_peak(s.device);
    mz::synchronize(s.device);
    group.barrier();
    const auto start = std::chrono::steady_clock::now();
    mz::Tensor loss;
    for (std::int64_t epoch = 0; epoch < epochs; ++epoch) {
        for (const mz::data::Batch& batch : data) {
            {
                mz::amp::Autocast scope({.dtype = mode.dtype});  // off in float32
                const mz::Tensor output = net(batch.x);
                loss = mz::mse_loss(output, batch.y);
                check_dtypes(mode, output, loss);
                loss = training::weighted(loss, batch.weight);
            }
            scaler.scale(loss).backward();
            scaler.step(optimizer);
            scaler.update();
            optimizer.zero_grad();
            profiled.step_done();
        }
    }
    mz::synchronize(s.device);
    Result result;
    result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    result.peak_bytes = mz::memory_stats(s.device).max_allocated;
    result.loss = group.mean(loss.detach()).item<double>();
    result.steps = steps;
    result.skipped = optimizer.skipped_steps();
    return result;
}

// All ranks draw the same batches, and each keeps its rows of them.
std::vector<mz::data::Batch> make_data(const Settings& s, const mz::distributed::Group& group) {
    mz::manual_seed(s.seed + 1);
    const mz::data::ShardRows mine = group.shard().slice(s.batch);
    const auto rows = [&] {
        const mz::Tensor all = mz::randn({s.batch, s.width}, {.device = s.device});
        return group.size() == 1 ? all : all.slice(0, mine.first, mine.first + mine.count).clone();
    };
    std::vector<mz::data::Batch> data;
    for (std::int64_t i = 0; i < s.batches; ++i) {
        const mz::Tensor x = rows(), y = rows();
        data.push_back({x, y, mine.weight});
    }
    return data;
}

void run(const Settings& s, const mz::distributed::Group& group) {
    fmt::print(
        "{} x Linear({}, {}) with ReLU between, batch {}, {} batches, {} epochs, SGD lr {:g}, seed {}\n",
        s.layers, s.width, s.width, s.batch, s.batches, s.epochs, s.lr, s.seed);
    if (group.size() > 1) fmt::print("{} ranks share each batch\n", group.size());
    fmt::print("{}\n\n", mz::hardware_name(s.device));

    std::vector<Mode> modes{{"fp32", "float32", mz::float32},
                            {"bf16", "bfloat16 autocast", mz::bfloat16},
                            {"", "float16 autocast", mz::float16},
                            {"fp16", "float16 autocast + scaler", mz::float16, true}};
    if (s.precision != "all") std::erase_if(modes, [&](const Mode& m) { return s.precision != m.precision; });

    const auto data = make_data(s, group);
    // One step of each kind before any is timed: threads start, GEMM libraries load.
    for (const Mode& mode : modes) train(s, group, mode, {data[0]}, 1);

    fmt::print("{:<27} {:>9} {:>10} {:>10} {:>11} {:>8} {:>7}\n", "precision", "total s", "ms / step",
               "peak MB", "final loss", "skipped", "ratio");
    double baseline = 0;
    for (const Mode& mode : modes) {
        const Result r = train(s, group, mode, data, s.epochs, s.profile);
        if (baseline == 0) baseline = r.seconds;
        fmt::print("{:<27} {:>9.3f} {:>10.3f} {:>10.1f} {:>11.6f} {:>8} {:>7.2f}\n", mode.name, r.seconds,
                   1e3 * r.seconds / double(r.steps), double(r.peak_bytes) / 1e6, r.loss, r.skipped,
                   baseline / r.seconds);
        std::fflush(stdout);
    }
    fmt::print("\nratio: time in float32 / time; peak: tensors, batches included\n");
}

int parse_and_run(int argc, char** argv) {
    Settings s;
    std::string preset = "small", device;
    int threads = mz::num_threads();
    CLI::App app{"Times the training of an MLP in float32 and in mixed precision."};
    app.option_defaults()->always_capture_default();
    app.add_option("--preset", preset, "small; recipe: batch 512, width 4096, 50 batches, 3 epochs")
        ->check(CLI::IsMember({"small", "recipe"}));
    app.add_option("--batch", s.batch, "samples per batch, over all ranks")->transform(program::positive());
    app.add_option("--width", s.width, "features of input, hidden layers and output")
        ->transform(program::positive());
    app.add_option("--layers", s.layers, "linear layers")->transform(program::positive());
    app.add_option("--batches", s.batches, "batches per epoch")->transform(program::positive());
    app.add_option("--epochs", s.epochs, "passes over the batches")->transform(program::positive());
    app.add_option("--lr", s.lr, "learning rate")->transform(program::learning_rate());
    app.add_option("--precision", s.precision,
                   "all in turn; fp32; bf16: autocast; fp16: autocast and gradient scaler")
        ->check(CLI::IsMember({"all", "fp32", "bf16", "fp16"}));
    program::add_seed(app, s.seed, "of weights and data");
    training::add_profile_option(app, s.profile);
    app.callback([&s] {
        if (!s.profile.empty() && s.precision == "all")
            throw CLI::ValidationError("--profile", "one precision is profiled; pass --precision, too");
    });
    program::add_device(app, device);
    program::add_threads(app, threads);
    if (const int code = program::parse(app, argc, argv); code >= 0) return code;
    if (preset == "recipe") {  // options given explicitly win
        if (app.count("--batch") == 0) s.batch = 512;
        if (app.count("--width") == 0) s.width = 4096;
        if (app.count("--batches") == 0) s.batches = 50;
    }
    if (!s.profile.empty()) training::check_file("--profile", s.profile);
    if (!device.empty()) s.device = mz::parse_device(device.c_str());
    const mz::distributed::Group group = training::join_ranks(app.count("--threads") > 0 ? threads : 0);
    if (device.empty()) s.device = group.device();
    run(s, group);
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    mz::set_log_sink(program::log_to_stderr);
    return program::run("mlp", [&] { return parse_and_run(argc, argv); });
}
