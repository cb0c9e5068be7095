// The code of docs/guide/mixed_precision.md: each block there is a case here.
#include <catch2/catch.hpp>

#include <cmath>

#include "mezzo/mezzo.h"

namespace mz = mezzo;
namespace nn = mezzo::nn;

namespace {

const mz::Tensor small_x = mz::full({4, 3}, 0.5);

}  // namespace

TEST_CASE("scaler document: a step", "[scaler]") {
    const nn::Linear net(3, 2);
    mz::optim::SGD optimizer(net.parameters(), {.lr = 0.1});
    const mz::Tensor &x = small_x, y = mz::zeros({4, 2});
    const std::vector<float> before = net.weight.to_vector<float>();
    // begin
    mz::amp::GradScaler scaler;  // one for the whole training
    mz::Tensor loss;
    {
        const mz::amp::Autocast scope({.dtype = mz::float16});
        loss = mz::mse_loss(net(x), y);
    }
    scaler.scale(loss).backward();                     // gradients times 65,536
    scaler.unscale_(optimizer);                        // only where gradients are read before the step
    nn::clip_grad_norm_(optimizer.parameters(), 1.0);  // here, by clipping
    scaler.step(optimizer);                            // skipped where a gradient is inf or NaN
    scaler.update();                                   // halves the scale then
    optimizer.zero_grad();
    // end
    CHECK(net.weight.to_vector<float>() != before);
    CHECK(scaler.get_scale() == 65536);
}

TEST_CASE("scaler document: what a scale is for", "[scaler]") {
    // begin
    const mz::Tensor gradient = mz::full({1}, 1e-8);
    const float lost = gradient.to(mz::float16).item<float>();            // 0
    const mz::Tensor scaled = (gradient * 65536.0).to(mz::float16);       // 6.55e-4
    const float kept = (scaled.to(mz::float32) / 65536.0).item<float>();  // 1e-8, to three digits
    // end
    CHECK(lost == 0);
    CHECK(std::abs(kept - 1e-8f) < 1e-11f);
}

TEST_CASE("scaler document: the scale follows overflows", "[scaler]") {
    const nn::Linear net(3, 2);
    mz::optim::SGD optimizer(net.parameters(), {.lr = 0});
    std::vector<double> scales;
    const auto step = [&](mz::amp::GradScaler& scaler, double factor) {
        optimizer.zero_grad();
        scaler.scale(net(small_x).sum() * factor).backward();
        scaler.step(optimizer);
        scaler.update();
        scales.push_back(scaler.get_scale());
    };
    // begin
    mz::amp::GradScaler scaler({.init_scale = 1024, .growth_interval = 3});
    step(scaler, INFINITY);                         // skipped: 512
    for (int i = 0; i < 3; ++i) step(scaler, 1.0);  // three clean steps in a row: 1024 again
    // end
    CHECK(scales == std::vector<double>{512, 512, 512, 1024});
    CHECK(optimizer.skipped_steps() == 1);
}

TEST_CASE("scaler document: a fixed scale, and saving", "[scaler]") {
    // begin
    mz::amp::GradScaler fixed({.init_scale = 128, .dynamic = false});  // skips steps, keeps the scale
    mz::amp::GradScaler careful({.min_scale = 1, .hysteresis = 2, .at_floor = mz::amp::AtFloor::fail});
    mz::amp::GradScaler resumed;
    resumed.load_state_dict(careful.state_dict());  // the scale and the count of clean steps
    // end
    CHECK(fixed.get_scale() == 128);
    CHECK(resumed.get_scale() == careful.get_scale());
}
