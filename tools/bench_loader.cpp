// Measures how long a training waits for its data: a ResNet on images that are cropped, mirrored and
// jittered, with 0 or more worker threads. With --csv FILE or --image FILE it measures the processor time of
// read_csv() or read_image(), for comparison with pandas and PIL,
//   python3 -m timeit -p -r 5 -n 1 -s 'import pandas' 'pandas.read_csv("FILE")'
//   python3 -m timeit -p -r 5 -n 5 -s 'import PIL.Image' 'PIL.Image.open("FILE").load()'
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>

#include "mezzo/data/images.h"
#include "mezzo/data/loader.h"
#include "mezzo/data/table.h"
#include "mezzo/data/transforms.h"
#include "mezzo/mezzo.h"
#include "mezzo/models/resnet.h"
#include "samples/program.h"

namespace mz = mezzo;

namespace {

struct Settings {
    std::int64_t images = 512, size = 32, batch = 64, epochs = 2;
    std::vector<int> workers{0, 1, 2};
    int threads = mz::num_threads();
    std::string csv, image;
};

double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

mz::data::Dataset random_images(const Settings& s) {
    mz::manual_seed(1);
    const mz::Tensor x = (mz::rand({s.images, s.size, s.size, 3}) * 255.0).to(mz::uint8);
    return {x, mz::arange(s.images)};
}

mz::data::DataLoaderOptions loader_options(const Settings& s, int workers) {
    return {
        .batch_size = s.batch,
        .shuffle = true,
        .drop_last = true,
        .transforms = {mz::data::RandomCrop{.size = s.size, .padding = 4}, mz::data::RandomHorizontalFlip{},
                       mz::data::ColorJitter{.brightness = 0.2, .contrast = 0.2, .saturation = 0.2}},
        .mean = 0.5,
        .stddev = 0.25,
        .num_workers = workers};
}

struct Times {
    double waiting = 0, all = 0;
};

// Measures an epoch without its first batch, which cannot be made during a step.
Times epoch(mz::nn::ResNet& net, mz::optim::SGD& optimizer, mz::data::DataLoader& loader) {
    Times times;
    auto it = loader.begin();
    if (it == loader.end()) return times;
    mz::data::Batch batch = *it;
    const double start = now();
    for (;;) {
        mz::cross_entropy(net(batch.x), mz::remainder(batch.y, 10)).backward();
        optimizer.step();
        optimizer.zero_grad();
        const double before = now();
        ++it;
        const bool more = it != loader.end();
        if (more) batch = *it;
        times.waiting += now() - before;
        if (!more) break;
    }
    times.all = now() - start;
    return times;
}

void run(const Settings& s) {
    const mz::data::Dataset images = random_images(s);
    fmt::print("ResNet-8, {} images of {} x {}, batch {}, {} threads, {}\n\n", s.images, s.size, s.size,
               s.batch, s.threads, mz::hardware_name(mz::cpu_device));
    fmt::print("{:>8} {:>12} {:>12} {:>10}\n", "workers", "ms / batch", "waiting ms", "waiting %");
    for (const int workers : s.workers) {
        mz::manual_seed(1);
        mz::nn::ResNet net(mz::nn::resnet_config(8));
        mz::optim::SGD optimizer(net.parameters(), {.lr = 0.01});
        mz::data::DataLoader loader(images, loader_options(s, workers));
        static_cast<void>(epoch(net, optimizer, loader));  // starts threads and chooses kernels
        Times sum;
        for (std::int64_t i = 0; i < s.epochs; ++i) {
            const Times times = epoch(net, optimizer, loader);
            sum.waiting += times.waiting;
            sum.all += times.all;
        }
        const auto batches = double(s.epochs * loader.size());
        fmt::print("{:>8} {:>12.2f} {:>12.3f} {:>10.2f}\n", workers, 1e3 * sum.all / batches,
                   1e3 * sum.waiting / batches, 100 * sum.waiting / sum.all);
        std::fflush(stdout);
    }
}

// Prints the median processor time of reading a file, and what read() returns of it.
template <class Read> void time_reading(const char* what, const Read& read) {
    std::vector<double> seconds(5);
    std::string result;
    for (double& time : seconds) {
        const std::clock_t start = std::clock();
        result = read();
        time = double(std::clock() - start) / CLOCKS_PER_SEC;
    }
    std::sort(seconds.begin(), seconds.end());
    fmt::print("{}: {}, {:.4f} s of a processor, the median of {}\n", what, result,
               seconds[seconds.size() / 2], seconds.size());
}

void read_csv(const std::string& path) {
    time_reading("read_csv", [&] { return fmt::format("{} rows", mz::data::read_csv(path).size()); });
}

void read_image(const std::string& path) {
    for (const std::int64_t least_side : {0, 256})
        time_reading("read_image", [&] {
            const mz::Tensor image = mz::data::read_image(path, {.least_side = least_side});
            return fmt::format("{} by {} pixels", image.size(1), image.size(0));
        });
}

int parse_and_run(int argc, char** argv) {
    Settings s;
    CLI::App app{"Measures how long a training waits for batches that worker threads make."};
    app.option_defaults()->always_capture_default();
    app.add_option("--images", s.images, "images per epoch")->transform(program::positive());
    app.add_option("--size", s.size, "pixels in each direction")
        ->transform(program::in_range<std::int64_t>(8, 1024));
    app.add_option("--batch", s.batch, "images per batch")->transform(program::positive());
    app.add_option("--epochs", s.epochs, "epochs that are measured, after one that is not")
        ->transform(program::positive());
    app.add_option("--workers", s.workers, "numbers of worker threads")->transform(program::in_range(0, 64));
    app.add_option("--threads", s.threads, "CPU threads of the training")->transform(program::thread_count());
    app.add_option("--csv", s.csv, "measure read_csv() of this file instead")->check(CLI::ExistingFile);
    app.add_option("--image", s.image,
                   "measure read_image() of this file instead, whole and with least_side 256")
        ->check(CLI::ExistingFile);
    if (const int code = program::parse(app, argc, argv); code >= 0) return code;
    mz::set_num_threads(s.threads);
    if (!s.csv.empty())
        read_csv(s.csv);
    else if (!s.image.empty())
        read_image(s.image);
    else
        run(s);
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    return program::run("bench_loader", [&] { return parse_and_run(argc, argv); });
}
