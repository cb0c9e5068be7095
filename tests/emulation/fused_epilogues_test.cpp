// Training steps of fused layers whose products end in each epilogue of the library.
#include <catch2/catch.hpp>
#include <set>

#include "cuda/runtime/runtime.h"
#include "mezzo/mezzo.h"
#include "tests/emulation/tuned.h"
#include "tests/support/support.h"

namespace {

using namespace mezzo;
using cuda::lt::Epilogue;
using emulation::fake_lt;
using test::Tuned;

const Device gpu{DeviceType::cuda};
constexpr cuda::GemmOptions everything{.autotune = true, .fuse_layers = true, .relu_masks = true};

nn::Sequential model(bool relu, Device device) {
    manual_seed(3);
    const auto layer = [](std::int64_t in, std::int64_t out) { return nn::Linear(in, out); };
    nn::Sequential net{layer(16, 24), nn::ReLU(), layer(24, 32), nn::ReLU(), layer(32, 8)};
    if (!relu)
        net = nn::Sequential{layer(16, 24), nn::GELU({.approximate_tanh = true}), layer(24, 32),
                             nn::GELU({.approximate_tanh = true}), layer(32, 8)};
    net.to(device);
    return net;
}

Tensor values(const Shape& shape, std::uint64_t seed, Device device) {
    return test::tensor_of(test::random_values(shape.numel(), seed, test::Domain::any), shape, float32,
                           device);
}

// The gradients of all parameters, in float16 under autocast or all in float32.
Tensors gradients(bool relu, bool mixed, Device device) {
    const nn::Sequential net = model(relu, device);
    Tensor y;
    {
        const amp::Autocast low({.device = device.type(), .dtype = float16, .enabled = mixed});
        y = net(values({40, 16}, 1, device));
    }
    autograd::backward({y}, {.grad_outputs = {values({40, 8}, 2, device)}});
    Tensors result;
    for (const Tensor& p : net.parameters()) result.push_back(p.grad());
    return result;
}

void check_close(const Tensors& got, const Tensors& expected, test::Tolerance allowed) {
    for (std::size_t i = 0; i < expected.size(); ++i) {
        CAPTURE(i);
        REQUIRE(got[i].dtype() == float32);
        double most = 0;
        for (double v : test::doubles(expected[i])) most = std::max(most, std::abs(v));
        CHECK(test::difference(test::doubles(got[i]), test::doubles(expected[i]),
                               {allowed.relative, 4 * allowed.relative * most + allowed.absolute}) == "");
    }
}

// The epilogues that ran after everything had been tuned.
std::multiset<Epilogue> epilogues(bool relu, bool mixed) {
    gradients(relu, mixed, gpu);
    std::multiset<Epilogue> seen;
    fake_lt.on_run = [&](const cuda::lt::Operands&) { seen.insert(fake_lt.last_problem.epilogue); };
    const Tensors got = gradients(relu, mixed, gpu);
    fake_lt.on_run = nullptr;
    check_close(got, gradients(relu, mixed, cpu_device), test::tolerance(mixed ? float16 : float32));
    return seen;
}

}  // namespace

TEST_CASE("fused layers: each epilogue of the library in a training step", "[cuda][linear][emulation]") {
    const Tuned tuned;
    emulation::options.launch_ms = 0.5;
    cuda::set_gemm_options(everything);
    const bool mixed = GENERATE(false, true), relu = GENERATE(true, false);
    fake_lt.precise_gelu = !mixed;
    const Epilogue forward = relu ? Epilogue::relu_aux_bias : Epilogue::gelu_tanh_aux_bias;
    const Epilogue alone = relu ? Epilogue::drelu : Epilogue::dgelu_tanh;
    const Epilogue bgrad = relu ? Epilogue::drelu_bgrad : Epilogue::dgelu_tanh_bgrad;
    const Epilogue both = mixed ? alone : bgrad;  // the library has no float32 sums of 16-bit results
    const Epilogue none = Epilogue::none, bias = Epilogue::bias;
    // The last layer's bias gradient, which no layer above has computed, with the gradient of its weight.
    const Epilogue sums = Epilogue::bgrad_b;
    SECTION("everything in the library") {
        CHECK(epilogues(relu, mixed) == std::multiset{forward, forward, bias, both, both, none, none, sums});
    }
    SECTION("no bias gradients, as where it has none in float32") {
        fake_lt.refused = {bgrad};
        CHECK(epilogues(relu, mixed) ==
              std::multiset{forward, forward, bias, alone, alone, none, none, sums});
    }
    SECTION("no masks or matrices beside the result") {
        fake_lt.refused = {forward};
        const Epilogue plain = relu ? Epilogue::relu_bias : bias;
        CHECK(epilogues(relu, mixed) == std::multiset{plain, plain, bias, both, both, none, none, sums});
    }
    SECTION("no gradients") {
        fake_lt.refused = {bgrad, alone};
        CHECK(epilogues(relu, mixed) == std::multiset{forward, forward, bias, none, none, none, none, sums});
    }
    SECTION("no masks asked for") {
        cuda::set_gemm_options({.autotune = true, .fuse_layers = true, .relu_masks = false});
        const std::multiset<Epilogue> seen = epilogues(relu, mixed);
        CHECK(seen.count(both) == (relu ? 0u : 2u));
        CHECK(seen.count(Epilogue::relu_aux_bias) == 0);
    }
    SECTION("nothing asked for but timing") {
        cuda::set_gemm_options({.autotune = true});
        CHECK(epilogues(relu, mixed) == std::multiset{forward, forward, bias, both, both, none, none, sums});
    }
    SECTION("masks in another layout") {
        fake_lt.mask = emulation::FakeLt::Mask::big_endian;
        const std::multiset<Epilogue> seen = epilogues(relu, mixed);
        CHECK(seen.count(both) == (relu ? 0u : 2u));
        CHECK(seen.count(forward) == (relu ? 0u : 2u));
    }
}

TEST_CASE("fused layers: a fused layer's backward pass takes fewer launches", "[cuda][linear][emulation]") {
    const Tuned tuned;
    emulation::options.launch_ms = 0.5;
    const auto launches_of = [](const cuda::GemmOptions& options) {
        cuda::set_gemm_options(options);
        cuda::clear_gemm_plans();
        gradients(true, false, gpu);
        const auto before = cuda::counters().launches;
        gradients(true, false, gpu);
        return cuda::counters().launches - before;
    };
    const auto plain = launches_of({.fuse_bias_gradients = false, .fuse_layers = false});
    const auto fused_bias = launches_of({.fuse_bias_gradients = true, .fuse_layers = false});
    CHECK(fused_bias == plain - 2);
    CHECK(launches_of({.fuse_layers = true}) == fused_bias);
    CHECK(launches_of({}) == fused_bias);  // the self-checks pass on the emulated device
    CHECK(launches_of(everything) == fused_bias - 3);
}

TEST_CASE("fused layers: products add to gradients that are there, and stop above frozen layers",
          "[cuda][linear][emulation]") {
    const Tuned tuned;
    cuda::set_gemm_options({.fuse_layers = true});
    const nn::Sequential net = model(true, gpu);
    const auto products = [&] {  // how many there are, and how many of them add to C
        const Tensor y = net(values({40, 16}, 1, gpu));
        std::pair<int, int> count;
        fake_lt.on_run = [&](const cuda::lt::Operands& o) {
            ++count.first;
            count.second += o.beta == 1;
        };
        autograd::backward({y}, {.grad_outputs = {values({40, 8}, 2, gpu)}});
        fake_lt.on_run = nullptr;
        return count;
    };
    products(), products();  // algorithms are checked, which takes runs of their own
    CHECK((products() == std::pair(5, 3)));
    for (const Tensor& p : net.parameters()) p.set_grad({});
    CHECK((products() == std::pair(5, 0)));
    for (std::size_t i = 0; i < 4; ++i) net.parameters()[i].set_requires_grad(false);
    CHECK((products() == std::pair(1, 1)));
    net.parameters()[1].set_requires_grad();  // the first bias
    CHECK((products() == std::pair(3, 1)));
}
