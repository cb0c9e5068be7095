// The cached root gradient, a tensor of 1 with which a backward pass begins on the CUDA device, real or
// emulated: it is written once and reused, and writes to it do not reach other passes.
#include <catch2/catch.hpp>

#include "core/tensor_impl.h"
#include "cuda/runtime/runtime.h"
#include "mezzo/mezzo.h"
#include "tests/support/support.h"

using namespace mezzo;

namespace {

const Device gpu{DeviceType::cuda};

Tensor leaf(double value, Dtype dtype = float32) {
    return full({}, value, {.dtype = dtype, .device = gpu}).set_requires_grad();
}

// The gradient of 3 x, which is the root gradient times 3, and the launches of the backward pass.
double gradient(const Tensor& x, std::uint64_t* launches = nullptr) {
    x.set_grad({});
    const Tensor y = x * 3.0;
    const std::uint64_t before = cuda::counters().launches;
    y.backward();
    if (launches != nullptr) *launches = cuda::counters().launches - before;
    return x.grad().item<double>();
}

}  // namespace

TEST_CASE("seed: written once, whatever the shape, and outside of all statistics", "[cuda][autograd]") {
    if (test::no_device()) return;
    const Dtype dtype = GENERATE(float32, float64, float16, bfloat16);
    const Tensor x = leaf(2, dtype);
    CHECK(gradient(x) == 3);  // makes it where no case before has
    const std::size_t allocated = memory_stats(gpu).allocated;
    const LiveObjects live = live_objects();
    std::uint64_t launches = 0;
    CHECK(gradient(x, &launches) == 3);
    CHECK(launches == 1);  // the product with 3
    const Tensor row = full({1, 1}, 2, {.dtype = dtype, .device = gpu}).set_requires_grad();
    const std::uint64_t before = cuda::counters().launches;
    sum(row).backward();
    CHECK(cuda::counters().launches - before <= 1);
    CHECK(row.grad().shape() == Shape{1, 1});
    CHECK(row.grad().item<double>() == 1);
    row.set_grad({});
    CHECK(memory_stats(gpu).allocated == allocated + 512);  // row
    CHECK(live_objects().storages == live.storages + 1);
}

TEST_CASE("seed: gradients that it has become can be written, and are no other pass's", "[cuda][autograd]") {
    if (test::no_device()) return;
    const Tensor x = leaf(2), other = leaf(5);
    x.backward();  // the gradient of x by x is the seed
    CHECK(x.grad().item<double>() == 1);
    SECTION("while it is held") {
        other.backward();
        x.grad().mul_(7);
        CHECK(other.grad().item<double>() == 1);
        CHECK(x.grad().item<double>() == 7);
        CHECK(gradient(leaf(1)) == 3);
        CHECK(x.grad().item<double>() == 7);
    }
    SECTION("and is given back") {
        x.grad().mul_(7);
        x.set_grad({});
        CHECK(gradient(leaf(1)) == 3);
        CHECK(gradient(leaf(1)) == 3);
    }
    SECTION("added to") {
        for (int i = 0; i < 3; ++i) x.backward();
        CHECK(x.grad().item<double>() == 4);
        other.backward();
        CHECK(other.grad().item<double>() == 1);
    }
    SECTION("by a hook") {
        const Tensor y = other * 1.0;
        autograd::add_hook(y, [](const Tensor& g) { return g.mul_(5); });
        y.backward();
        CHECK(other.grad().item<double>() == 5);
        CHECK(gradient(leaf(1)) == 3);
    }
    SECTION("by a hook, while another has kept its own") {
        Tensor kept;
        const Tensor y = other * 1.0, z = other * 1.0;
        autograd::add_hook(y, [&](const Tensor& g) {
            kept = g;
            return Tensor();
        });
        autograd::add_hook(z, [](const Tensor& g) { return g.mul_(5); });
        y.backward();
        z.backward();
        CHECK(kept.item<double>() == 1);
        CHECK(other.grad().item<double>() == 6);
    }
    SECTION("by an optimizer's zero_grad") {
        optim::SGD sgd({x}, {.lr = 1});
        sgd.zero_grad(false);
        x.backward();
        CHECK(x.grad().item<double>() == 1);
        CHECK(gradient(leaf(1)) == 3);
    }
}

TEST_CASE("seed: of a recorded backward pass, and of second derivatives", "[cuda][autograd]") {
    if (test::no_device()) return;
    const Tensor x = leaf(3);
    for (int i = 0; i < 2; ++i) {
        const Tensor y = x * x * x;
        const Tensor first = autograd::grad({y}, {x}, {.create_graph = true})[0];
        const Tensor second = autograd::grad({first}, {x})[0];
        CHECK(first.item<double>() == 27);
        CHECK(second.item<double>() == 18);
    }
}

TEST_CASE("seed: a captured step has its own", "[cuda][autograd]") {
    if (test::no_device()) return;
    const Tensor x = leaf(2);
    const Tensor kept = zeros({}, {.device = gpu});
    cuda::CapturedStep step([&](const Tensors&) {
        x.set_grad({});
        (x * 3.0).backward();
        kept.copy_(x.grad());
        x.set_grad({});
        return Tensors{};
    });
    for (int i = 0; i < 8; ++i) {
        step({});
        const Tensor y = leaf(1);
        y.backward();
        y.grad().mul_(double(10 + i));  // writes the seed of eager passes between the replays
        CHECK(kept.item<double>() == 3);
    }
}
