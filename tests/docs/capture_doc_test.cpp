// The code of docs/guide/capture.md: each block there is a case here.
#include <catch2/catch.hpp>

#include "mezzo/data/transforms.h"
#include "mezzo/mezzo.h"

namespace mz = mezzo;
namespace nn = mezzo::nn;

TEST_CASE("capture document: a training step", "[capture]") {
    nn::Sequential net{nn::Linear(8, 16), nn::ReLU(), nn::Linear(16, 2)};
    std::vector<mz::data::Batch> loader;
    for (int i = 0; i < 8; ++i)
        loader.push_back({.x = mz::randn({4, 8}), .y = mz::zeros({4}, {.dtype = mz::int64})});
    double first = 0, last = 0;
    // begin
    net.to(mz::best_device());
    mz::optim::AdamW optimizer(net.parameters(), {.lr = 1e-2});
    mz::amp::GradScaler scaler;
    mz::cuda::CapturedStep step([&](const mz::Tensors& in) {
        mz::Tensor loss;
        {
            const mz::amp::Autocast scope({.dtype = mz::float16});
            loss = mz::cross_entropy(net(in[0]), in[1]);
        }
        scaler.scale(loss).backward();
        scaler.step(optimizer);
        scaler.update();
        optimizer.zero_grad();
        return mz::Tensors{loss};
    });
    for (const mz::data::Batch& batch : loader) {
        const mz::Tensor loss = step({batch.x, batch.y})[0];  // overwritten by the next call
        last = loss.item<double>();                           // read outside of the step
        if (first == 0) first = last;
    }
    // end
    CHECK(last < first);
}

TEST_CASE("capture document: what became of the calls", "[capture]") {
    mz::cuda::CapturedStep step([](const mz::Tensors& in) { return mz::Tensors{in[0] * 2.0}; },
                                {.warmup = 1});
    for (int i = 0; i < 4; ++i) static_cast<void>(step({mz::ones({2})}));
    // begin
    const mz::cuda::CaptureStatistics calls = step.statistics();
    const auto all = calls.eager_runs + calls.captures + calls.replays;  // on the CPU all are eager
    step.clear();                                                        // drops the graphs and their memory
    // end
    CHECK(all == 4);
    CHECK(step.statistics().graphs == 0);
}
