// The code of docs/guide/debugging.md: each block there is a case here.
#include <catch2/catch.hpp>

#include <cmath>
#include <iostream>
#include <sstream>

#include "mezzo/insight/insight.h"
#include "mezzo/insight/summary.h"
#include "mezzo/mezzo.h"

namespace mz = mezzo;
namespace nn = mezzo::nn;

using Catch::Matchers::Contains;

TEST_CASE("troubleshooting: the op that makes NaN", "[troubleshooting]") {
    nn::Linear net(2, 2);
    const mz::Tensor x = mz::zeros({1, 2});
    const auto step = [&] {
        // begin
        const mz::insight::DetectAnomaly watch({.model = &net});  // slow: while looking only
        const mz::Tensor y = net(x).square().sum(1);
        const mz::Tensor loss = (y - y).sqrt().log().mean() * 0.0;  // throws: mul: ... NaN
        // end
    };
    CHECK_THROWS_WITH(step(), Contains("mul") && Contains("NaN"));
}

TEST_CASE("troubleshooting: gradients that are not finite", "[troubleshooting]") {
    nn::Sequential net{nn::Linear(2, 2)};
    mz::optim::SGD optimizer(net.parameters(), {.lr = 0.1});
    mz::amp::GradScaler scaler;
    const mz::Tensor x = mz::full({1, 2}, INFINITY);
    std::ostringstream log;
    scaler.scale(net(x).sum()).backward();
    // begin
    if (scaler.step(optimizer).skipped())
        for (const auto& gradient : mz::insight::overflowed_gradients(net))
            log << gradient.name << ": " << gradient.range.infs << " inf, " << gradient.range.nans
                << " NaN\n";
    scaler.update();
    // end
    CHECK_THAT(log.str(), Contains("0.weight"));
    CHECK(optimizer.skipped_steps() == 1);
}

TEST_CASE("troubleshooting: losses are added as numbers", "[troubleshooting]") {
    nn::Linear net(4, 1);
    const std::vector<mz::Tensor> batches{mz::ones({8, 4}), mz::ones({8, 4})};
    mz::optim::SGD optimizer(net.parameters(), {.lr = 0.1});
    // begin
    mz::Tensor total = mz::scalar(0);
    for (const mz::Tensor& batch : batches) {
        optimizer.zero_grad();
        const mz::Tensor loss = net(batch).square().mean();
        loss.backward();
        optimizer.step();
        total += loss.detach();  // without detach() every graph would stay
    }
    const double mean = total.item<double>() / double(batches.size());  // waits for the device once
    // end
    CHECK(mean >= 0);
    CHECK_FALSE(total.requires_grad());
}

TEST_CASE("troubleshooting: what memory is used for", "[troubleshooting]") {
    nn::Sequential net{nn::Linear(64, 64), nn::ReLU(), nn::Linear(64, 64)};
    const mz::Tensor x = mz::rand({32, 64});
    std::ostringstream out;
    // begin
    out << nn::summary(net, x);  // parameters, bytes and shapes of every module
    mz::reset_peak(x.device());
    {
        const mz::NoGrad plain;  // evaluation keeps no activations
        const mz::Tensor y = net(x);
    }
    const mz::MemoryStats memory = mz::memory_stats(x.device());
    out << memory.max_allocated / 1024 << " KiB at most, " << memory.allocated / 1024 << " KiB now\n";
    // end
    CHECK_THAT(out.str(), Contains("KiB at most") && Contains("parameters: 8,320"));
    const mz::Tensor y = mz::autograd::checkpoint(  // activations inside are computed again by backward
        [&](const mz::Tensors& in) { return mz::Tensors{net(in[0])}; }, {x})[0];
    CHECK(y.requires_grad());
}

TEST_CASE("troubleshooting: where the time goes", "[troubleshooting]") {
    nn::Sequential net{nn::Linear(64, 64), nn::ReLU(), nn::Linear(64, 64)};
    const mz::Tensor x = mz::rand({32, 64});
    std::ostringstream out;
    // begin
    out << mz::hardware_name(x.device()) << ", " << mz::num_threads() << " threads\n";
    mz::amp::collect_autocast_report(true);
    {
        const mz::amp::Autocast scope({.dtype = mz::bfloat16});
        net(x).sum().backward();
    }
    for (const mz::amp::AutocastReportLine& line : mz::amp::autocast_report())
        out << line.op << ": " << line.calls << " calls in " << line.computed << ", " << line.casts
            << " conversions\n";
    mz::amp::collect_autocast_report(false);
    // end
    mz::amp::clear_autocast_report();
    CHECK_THAT(out.str(), Contains("linear") && Contains("in bfloat16"));
}
