// Batch norm in captured steps: replays update the running statistics and the counter as eager steps do.
#include <catch2/catch.hpp>

#include <cmath>

#include "mezzo/mezzo.h"
#include "tests/support/support.h"

using namespace mezzo;
using namespace mezzo::test;

namespace {

const Device gpu{DeviceType::cuda};

struct Run {
    explicit Run(double momentum)
        : norm(8, {.momentum = momentum, .device = gpu}),
          net{nn::Linear(6, 8), norm, nn::ReLU(), nn::Linear(8, 2)} {
        manual_seed(4);
        for (const Tensor& p : net.parameters()) {
            NoGrad plain;
            p.normal_(0, 0.3);
        }
        net.to(gpu);
    }
    Tensors step(const Tensors& in) {
        const amp::Autocast scope({.device = DeviceType::cuda, .dtype = float16});
        const Tensor loss = mean(square(net(in[0])));
        optimizer.zero_grad();
        scaler.scale(loss).backward();
        scaler.step(optimizer);
        scaler.update();
        return {loss.detach()};
    }
    std::vector<double> state() const {
        std::vector<double> all;
        for (const Tensor& t :
             Tensors{norm.running_mean, norm.running_var, norm.num_batches_tracked, norm.weight})
            for (const double v : doubles(t)) all.push_back(v);
        return all;
    }
    nn::BatchNorm1d norm;
    nn::Sequential net;
    optim::SGD optimizer{net.parameters(), {.lr = 0.1}};
    amp::GradScaler scaler{{.init_scale = 64}};
};

// The fifth batch overflows in float16.
Tensor batch(int step) {
    return tensor_of(random_values(9 * 6, std::uint64_t(step), Domain::any), {9, 6}, float32, gpu) *
           (step == 4 ? 1e6 : 1.0);
}

}  // namespace

TEST_CASE("captured batch_norm: replays are eager steps", "[captured_batch_norm]") {
    if (no_device()) return;
    for (const double momentum : {0.1, nn::cumulative_average}) {
        Run eager(momentum), other(momentum);
        cuda::CapturedStep captured([&](const Tensors& in) { return other.step(in); }, {.device = gpu});
        for (int i = 0; i < 8; ++i) {
            CAPTURE(momentum, i);
            const double wanted = eager.step({batch(i)})[0].item<double>(),
                         actual = captured({batch(i)})[0].item<double>();
            CHECK((actual == wanted || (std::isnan(actual) && std::isnan(wanted))));
            CHECK(other.state() == eager.state());
        }
        CHECK(other.norm.num_batches_tracked.item<int>() == 7);
    }
}
