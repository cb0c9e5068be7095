// Batch norm in mixed precision: its dtypes under autocast and the presets, and a training step in each.
#include <catch2/catch.hpp>

#include <cmath>

#include "mezzo/mezzo.h"
#include "tests/support/support.h"

using namespace mezzo;
using namespace mezzo::test;
using amp::Choice;

namespace {

struct Net : nn::Module {
    nn::Linear first{6, 4};
    nn::BatchNorm1d norm{4, {.momentum = 0.5}};
    nn::Linear last{4, 1};
    mutable Tensor entered, left;  // what the norm got and gave
    Tensor operator()(const Tensor& x) const {
        entered = first(x);
        left = norm(entered, {.relu = true});
        return last(left);
    }
    MEZZO_MODULE(Net, first, norm, last)
};

Tensor batch(Device device, double factor = 1) {
    return tensor_of(random_values(60, 3, Domain::any), {10, 6}, float32, device) * factor;
}

struct Level {
    const char* opt_level;
    Choice keep;
    Dtype images, norm,
        linear;  // dtypes of the norm's input and result, its parameters and statistics, Linear
};

// The preset's own choice stands if keep_batchnorm_fp32 is not allowed, or changes nothing.
const Level levels[] = {
    {"O0", Choice::preset, float32, float32, float32}, {"O1", Choice::preset, float16, float32, float32},
    {"O2", Choice::preset, float16, float32, float16}, {"O2", Choice::no, float16, float16, float16},
    {"O3", Choice::preset, float16, float16, float16}, {"O3", Choice::yes, float16, float32, float16}};

}  // namespace

TEST_CASE("batch_norm under the presets: dtypes and a step in the scale_loss form", "[batch_norm][amp]") {
    for (const Device device : devices())
        for (const Level& level : levels) {
            CAPTURE(name(device.type()), level.opt_level, int(level.keep));
            manual_seed(1);
            Net net;
            net.to(device);
            optim::SGD optimizer(net.parameters(), {.lr = 0.05});
            amp::Handle handle =
                amp::initialize(net, optimizer,
                                {.opt_level = level.opt_level,
                                 .keep_batchnorm_fp32 = level.keep,
                                 .loss_scale = std::string(level.opt_level) == "O3" ? 1.0 : 8.0});
            CHECK(net.norm.weight.dtype() == level.norm);
            CHECK(net.norm.running_mean.dtype() == level.norm);
            CHECK(net.norm.running_var.dtype() == level.norm);
            CHECK(net.norm.num_batches_tracked.dtype() == int64);
            CHECK(net.first.weight.dtype() == level.linear);
            double first_loss = 0, loss_now = 0;
            for (int step = 0; step < 20; ++step) {
                const Tensor y = handle.forward(net, batch(device));
                CHECK(net.entered.dtype() == level.images);
                CHECK(net.left.dtype() == level.images);
                const Tensor loss = mean(square(y.to(float32) - 1.0));
                optimizer.zero_grad();
                handle.scale_loss(loss, optimizer, [](const Tensor& scaled) { scaled.backward(); });
                optimizer.step();
                loss_now = loss.item<double>();
                if (step == 0) first_loss = loss_now;
            }
            CHECK(loss_now < 0.5 * first_loss);
            CHECK(net.norm.num_batches_tracked.item<int>() == 20);
            CHECK(doubles(net.norm.running_var) != std::vector<double>(4, 1.0));
            net.eval();
            CHECK(std::isfinite(handle.forward(net, batch(device)).to(float32)[0].item<double>()));
        }
}

TEST_CASE("batch_norm under autocast converts neither parameters nor running statistics",
          "[batch_norm][amp]") {
    for (const Device device : devices())
        for (const Dtype scope : {float16, bfloat16}) {
            const nn::BatchNorm1d norm(6, {.momentum = 0.5, .device = device}),
                plain(6, {.momentum = 0.5, .device = device});
            const Tensor x = batch(device).to(scope);
            (void)plain(x);
            amp::clear_autocast_report();
            amp::collect_autocast_report(true);
            {
                const amp::Autocast open({.device = device.type(), .dtype = scope});
                CHECK(norm(x).dtype() == scope);
                CHECK(norm(x.to(float32)).dtype() == float32);
            }
            amp::collect_autocast_report(false);
            for (const amp::AutocastReportLine& line : amp::autocast_report()) CHECK(line.casts == 0);
            CHECK(norm.running_mean.dtype() == float32);
            (void)plain(x.to(float32));
            CHECK(doubles(norm.running_mean) == doubles(plain.running_mean));
            CHECK(doubles(norm.running_var) == doubles(plain.running_var));
        }
}

TEST_CASE("batch_norm: a step that the scaler skips leaves running statistics as they were",
          "[batch_norm][amp]") {
    for (const Device device : devices()) {
        manual_seed(1);
        Net net;
        net.to(device);
        optim::SGD optimizer(net.parameters(), {.lr = 0.05});
        amp::GradScaler scaler({.init_scale = 8});
        const auto step = [&](double factor) {
            const amp::Autocast open({.device = device.type(), .dtype = float16});
            const Tensor loss = mean(square(net(batch(device, factor))));
            optimizer.zero_grad();
            scaler.scale(loss).backward();
            scaler.step(optimizer);
            scaler.update();
        };
        step(1);
        const std::vector<double> mean_before = doubles(net.norm.running_mean),
                                  var_before = doubles(net.norm.running_var),
                                  weight = doubles(net.norm.weight);
        step(1e6);  // overflows in float16 before the norm
        CHECK(scaler.get_scale() == 4);
        CHECK(doubles(net.norm.weight) == weight);
        CHECK(doubles(net.norm.running_mean) == mean_before);
        CHECK(doubles(net.norm.running_var) == var_before);
        CHECK(net.norm.num_batches_tracked.item<int>() == 1);
        step(1);
        CHECK(net.norm.num_batches_tracked.item<int>() == 2);
    }
}
