// dropout: the elements that survive, their scale, and the same elements in the gradient.
#include <catch2/catch.hpp>

#include <cmath>

#include "mezzo/autograd.h"
#include "tests/support/support.h"

using namespace mezzo;
using namespace mezzo::test;

TEST_CASE("dropout keeps elements with probability 1 - p, scaled by 1 / (1 - p)", "[ops][dropout]") {
    for (Device device : devices())
        for (Dtype dtype : {float32, float16, bfloat16, float64}) {
            CAPTURE(name(device.type()), name(dtype));
            manual_seed(7);
            const Tensor y = dropout(ones({64, 100}, {.dtype = dtype, .device = device}), 0.25);
            CHECK(y.dtype() == dtype);
            int kept = 0;
            const double scale = doubles(full({}, 1 / 0.75, {.dtype = dtype}))[0];
            for (double v : doubles(y)) {
                if (v != 0) CHECK(v == Approx(scale).epsilon(1e-6));
                kept += v != 0;
            }
            CHECK(std::abs(kept - 4800) < 150);  // four standard deviations are 139
        }
}

TEST_CASE("the gradient of dropout meets the elements that survived, to second order", "[ops][dropout]") {
    for (Device device : devices()) {
        manual_seed(8);
        const Tensor x = rand({50}, {.device = device, .requires_grad = true});
        const Tensor g = ones({50}, {.device = device, .requires_grad = true});
        const Tensor y = dropout(x, 0.5);
        const Tensor first = autograd::grad({y}, {x}, {.grad_outputs = {g}, .create_graph = true})[0];
        const Tensor second = autograd::grad({first}, {g}, {.grad_outputs = {ones_like(first)}})[0];
        const auto values = doubles(y), slopes = doubles(first), again = doubles(second);
        for (std::size_t i = 0; i < 50; ++i) {
            CHECK(slopes[i] == (values[i] != 0 ? 2 : 0));
            CHECK(again[i] == slopes[i]);
        }
    }
}

TEST_CASE("dropout draws from the stream: equal seeds repeat, calls differ, devices agree",
          "[ops][dropout]") {
    const Tensor x = ones({1000});
    manual_seed(9);
    const auto a = doubles(dropout(x, 0.5)), b = doubles(dropout(x, 0.5));
    CHECK(a != b);
    for (Device device : devices()) {
        manual_seed(9);
        CHECK(doubles(dropout(x.to(device), 0.5)) == a);
    }
}

TEST_CASE("dropout at the ends of p, and outside training", "[ops][dropout]") {
    const Tensor x = Tensor::from({1, INFINITY, NAN}).set_requires_grad();
    CHECK(dropout(x, 0.5, false).impl() == x.impl());
    CHECK(dropout(x, 0).impl() == x.impl());
    const Tensor y = dropout(x, 1);
    CHECK(doubles(y) == std::vector<double>{0, 0, 0});
    autograd::backward({y}, {.grad_outputs = {ones({3})}});
    CHECK(doubles(x.grad()) == std::vector<double>{0, 0, 0});
    CHECK_THROWS_AS(dropout(x, 1.5), Error);
    CHECK_THROWS_AS(dropout(arange(3), 0.5), Error);
}
