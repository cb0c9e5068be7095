// Trains the same network in float32, bfloat16 and float16 and compares the three.
//
// The network has linear layers 64 -> 512 -> 512 -> 64 with ReLU between and learns y = sin(x), element by
// element. Each step draws a new batch of 256 random rows. 200 steps in each precision take a few seconds on
// two CPU cores.
//
// train() is the loop to read: mixed precision adds an Autocast scope around forward pass and loss, and
// float16 a GradScaler around backward pass and update. In the table the losses should agree to about 1 %,
// and the 16-bit rows should be faster where the device multiplies 16-bit numbers natively.
// For example, 500 steps on the CPU: mlp 500 cpu
#include <fmt/format.h>
#include <mezzo/mezzo.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string_view>

namespace mz = mezzo;

struct Result {
    double loss = 0, seconds = 0;
    std::int64_t skipped = 0;  // steps that the scaler skipped because a gradient overflowed
    std::size_t peak_bytes = 0;
};

Result train(mz::Dtype precision, mz::Device device, std::int64_t steps) {
    mz::manual_seed(1);  // the same weights and batches in each precision
    mz::nn::Sequential net{mz::nn::Linear(64, 512), mz::nn::ReLU(), mz::nn::Linear(512, 512), mz::nn::ReLU(),
                           mz::nn::Linear(512, 64)};
    net.to(device);
    mz::optim::Adam optimizer(net.parameters(), {.lr = 1e-3});
    mz::amp::GradScaler scaler({.enabled = precision == mz::float16});

    mz::reset_peak(device);
    const auto start = std::chrono::steady_clock::now();
    mz::Tensor loss;
    for (std::int64_t step = 0; step < steps; ++step) {
        const mz::Tensor x = mz::randn({256, 64}, {.device = device}), y = x.sin();
        {
            mz::amp::Autocast scope({.dtype = precision});  // off in float32
            loss = mz::mse_loss(net(x), y);                 // net(x) is float16 in float16, the loss float32
        }
        scaler.scale(loss).backward();
        scaler.unscale_(optimizer);
        mz::nn::clip_grad_norm_(net.parameters(), 1.0);
        scaler.step(optimizer);
        scaler.update();
        optimizer.zero_grad();
    }
    const double last = loss.item<double>();  // waits for the device
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    return {last, time.count(), optimizer.skipped_steps(), mz::memory_stats(device).max_allocated};
}

void compare(mz::Device device, std::int64_t steps) {
    fmt::print("{} steps on {}\n\n", steps, mz::hardware_name(device));
    fmt::print("precision  final loss   ms / step   peak MB  skipped\n");
    for (const mz::Dtype precision : {mz::float32, mz::bfloat16, mz::float16}) {
        train(precision, device, 2);  // threads start and kernels are chosen outside of the measured run
        const Result r = train(precision, device, steps);
        fmt::print("{:<9}{:>12.6f}{:>12.3f}{:>10.1f}{:>9}\n", mz::name(precision), r.loss,
                   1e3 * r.seconds / double(steps), double(r.peak_bytes) / 1e6, r.skipped);
    }
}

int main(int argc, char** argv) try {
    mz::set_log_sink([](std::string_view line) { fmt::print(stderr, "{}\n", line); });
    char* end = nullptr;
    const std::int64_t steps = argc > 1 ? std::strtoll(argv[1], &end, 10) : 200;
    if (steps < 1 || (end != nullptr && *end != '\0') || argc > 3) {
        fmt::print(stderr, "usage: mlp [STEPS [DEVICE]], such as: mlp 200 cuda:0\n");
        return 2;
    }
    compare(argc > 2 ? mz::parse_device(argv[2]) : mz::best_device(), steps);
} catch (const std::exception& error) {
    fmt::print(stderr, "mlp: {}\n", error.what());
    return 1;
}
