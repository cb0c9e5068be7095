// Devices on which an Autocast scope has an effect, and its report on ops without a kernel there.
#include <algorithm>
#include <catch2/catch.hpp>

#include "autograd/autocast_state.h"
#include "mezzo/amp.h"
#include "mezzo/nn.h"
#include "mezzo/ops.h"
#include "tests/support/support.h"

using namespace mezzo;
using amp::Autocast;

namespace {

// Dtypes of products on each device, then the dtypes that the state gives for the CPU and for CUDA.
std::vector<Dtype> product_dtypes() {
    std::vector<Dtype> result;
    for (const Device device : test::devices()) {
        const Tensor x = ones({1, 1}, {.device = device});
        result.push_back(matmul(x, x).dtype());
    }
    for (const DeviceType type : {DeviceType::cpu, DeviceType::cuda})
        result.push_back(amp::autocast_enabled(type) ? amp::autocast_dtype(type) : float32);
    return result;
}

}  // namespace

TEST_CASE("autocast: a scope without a device covers every device, one with a device only that", "[amp]") {
    const std::size_t count = test::devices().size() + 2;
    const auto on_each = [&](Dtype cpu, Dtype cuda) {
        std::vector<Dtype> expected{cpu};
        if (count == 4) expected.push_back(cuda);
        expected.push_back(cpu);
        expected.push_back(cuda);
        return expected;
    };
    REQUIRE(test::devices()[0].type() == DeviceType::cpu);
    CHECK(product_dtypes() == on_each(float32, float32));
    {
        const Autocast scope;
        CHECK(product_dtypes() == on_each(float16, float16));
        {
            const Autocast cuda({.device = DeviceType::cuda, .dtype = bfloat16});
            CHECK(product_dtypes() == on_each(float16, bfloat16));
            {
                const Autocast off({.device = DeviceType::cpu, .enabled = false});
                CHECK(product_dtypes() == on_each(float32, bfloat16));
                const Autocast all({.enabled = false});
                CHECK(product_dtypes() == on_each(float32, float32));
            }
            CHECK(product_dtypes() == on_each(float16, bfloat16));
        }
        CHECK(product_dtypes() == on_each(float16, float16));
    }
    {
        const Autocast cpu({.device = DeviceType::cpu});
        CHECK(product_dtypes() == on_each(float16, float32));
        const Autocast all({.dtype = bfloat16});
        CHECK(product_dtypes() == on_each(bfloat16, bfloat16));
    }
    CHECK(product_dtypes() == on_each(float32, float32));
}

TEST_CASE("autocast: presets run the model in 16 bit wherever its input comes from", "[amp]") {
    for (const Device device : test::devices()) {
        nn::Linear layer(2, 2);
        layer.to(device);
        optim::SGD optimizer(layer.parameters(), {.lr = 0.1});
        amp::Handle handle = amp::initialize(layer, optimizer, {.opt_level = "O1"});
        Dtype computed = float32;
        const auto moved = [&](const Tensor& x) {
            const Tensor y = layer(x.to(device));
            computed = y.dtype();
            return y;
        };
        CHECK(handle.forward(moved, ones({1, 2})).dtype() == float32);
        CHECK(computed == float16);
    }
}

TEST_CASE("autocast: a scope without a device leaves steady training without casts on every device",
          "[amp]") {
    for (const Device device : test::devices()) {
        nn::Linear layer(4, 4);
        layer.to(device);
        optim::SGD optimizer(layer.parameters(), {.lr = 0.01});
        const Tensor x = ones({2, 4}, {.dtype = float16, .device = device});
        for (int t = 0; t < 3; ++t) {
            const std::uint64_t before = autocast_counters().casts;
            Tensor y;
            {
                const Autocast scope;
                y = layer(x);
            }
            CHECK(autocast_counters().casts - before == (t == 0 ? 2 : 0));
            CHECK(y.dtype() == float16);
            sum(y).backward();
            optimizer.step();
            optimizer.zero_grad();
        }
    }
}

TEST_CASE("autocast: the report has ops that run by their decomposition, which computes in float32",
          "[amp]") {
    amp::clear_autocast_report();
    amp::collect_autocast_report(true);
    {
        const Autocast scope;
        const test::ByDecomposition without_kernels;
        linear(ones({3, 2}), ones({1, 2}).set_requires_grad());
    }
    amp::collect_autocast_report(false);
    const auto report = amp::autocast_report();
    amp::clear_autocast_report();
    const auto line =
        std::find_if(report.begin(), report.end(), [](const auto& one) { return one.op == "linear"; });
    REQUIRE(line != report.end());
    CHECK(line->calls == 1);
    CHECK(line->computed == float32);
    CHECK(line->result == float16);
    CHECK(line->casts == 2);
}
