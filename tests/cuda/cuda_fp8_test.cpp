// Float8 products on the device: codes with the bits of the CPU's, and the same step captured.
#include <catch2/catch.hpp>

#include "mezzo/mezzo.h"
#include "tests/support/both_devices.h"

using namespace mezzo;
using namespace mezzo::test;

namespace {

constexpr std::int64_t size = 32;

// A training of two layers in float8 on the device.
struct Training {
    nn::Sequential net{nn::Linear(size, 2 * size), nn::GELU(), nn::Linear(2 * size, size)};
    std::vector<Tensor> batches;
    std::unique_ptr<optim::AdamW> optimizer;

    explicit Training(Device device) {
        manual_seed(4);
        for (const Tensor& p : net.parameters()) p.detach().normal_(0, 0.2);
        for (int i = 0; i < 6; ++i) batches.push_back(randn({size, size}).to(device));
        net.to(device);
        optimizer = std::make_unique<optim::AdamW>(net.parameters(), optim::AdamWOptions{.lr = 0.01});
    }
    Tensors step(const Tensors& in) {
        Tensor loss;
        {
            const amp::Autocast scope({.dtype = bfloat16, .fp8 = amp::Fp8{.least_size = 16}});
            loss = mse_loss(net(in[0]), in[0]);
        }
        optimizer->zero_grad();
        loss.backward();
        optimizer->step();
        return {loss};
    }
};

}  // namespace

TEST_CASE("cuda: quantize() gives the CPU's codes and scales", "[cuda]") {
    if (no_device()) return;
    for (const Dtype dtype : {float8_e4m3fn, float8_e5m2})
        for (const Granularity granularity : {Granularity::tensor, Granularity::row})
            for (const double factor : {1.0, 1e-36, 1e30}) {
                const Tensor x = tensor_of(random_values(3 * 40, 5, Domain::any), {3, 40}, float32) * factor;
                const QuantizeOptions options{.dtype = dtype, .granularity = granularity};
                const Quantized host = quantize(x, options), device = quantize(x.to(cuda_device), options);
                CHECK(equal(device.scale.to(cpu_device), host.scale));
                CHECK(equal(device.codes.to(cpu_device).to(float32), host.codes.to(float32)));
            }
}

TEST_CASE("cuda: a step in float8 is the CPU's, and the same when it is captured", "[cuda]") {
    if (no_device()) return;
    Training host(cpu_device), eager(cuda_device), replayed(cuda_device);
    cuda::CapturedStep captured([&](const Tensors& in) { return replayed.step(in); });
    for (std::size_t i = 0; i < host.batches.size(); ++i) {
        CAPTURE(i);
        const double expected = host.step({host.batches[i]})[0].item<double>();
        const double loss = eager.step({eager.batches[i]})[0].item<double>();
        CHECK(loss == Approx(expected).epsilon(0.01));
        CHECK(captured({replayed.batches[i]})[0].item<double>() == loss);
    }
    for (std::size_t i = 0; i < 4; ++i)
        CHECK(equal(eager.net.parameters()[i].detach(), replayed.net.parameters()[i].detach()));
}
