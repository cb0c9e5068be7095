// Gradients of linear with those of activation and bias fused into one kernel.
#include <catch2/catch.hpp>

#include "mezzo/autocast.h"
#include "mezzo/autograd.h"
#include "mezzo/cuda.h"
#include "tests/support/support.h"

namespace {

using namespace mezzo;

struct Fused {
    explicit Fused(bool on) { cuda::set_gemm_options({.fuse_bias_gradients = on}); }
    ~Fused() { cuda::set_gemm_options({}); }
};

struct Run {
    Tensors first, second;
};

// Gradients of both orders with respect to x, weight and bias.
Run gradients(bool fused, LinearActivation activation, Dtype dtype, bool autocast, Device device) {
    const Fused scope(fused);
    const auto leaf = [&](const Shape& shape, std::uint64_t seed) {
        return test::tensor_of(test::random_values(shape.numel(), seed, test::Domain::any), shape, dtype,
                               device)
            .set_requires_grad();
    };
    const Tensor x = leaf({7, 8}, 1), weight = leaf({16, 8}, 2), bias = leaf({16}, 3);
    const Tensor factor =
        test::tensor_of(test::random_values(7 * 16, 4, test::Domain::any), {7, 16}, dtype, device);
    Tensor loss;
    {
        const amp::Autocast low({.device = device.type(), .dtype = bfloat16, .enabled = autocast});
        loss = sum(linear(x, weight, bias, activation) * factor);
    }
    Run run;
    run.first = autograd::grad({loss}, {x, weight, bias}, {.create_graph = true});
    Tensor again = sum(square(run.first[0])) + sum(square(run.first[1])) + sum(square(run.first[2]));
    run.second = autograd::grad({again}, {x, weight, bias}, {.allow_unused = true});
    return run;
}

void compare(const Tensor& got, const Tensor& expected) {
    REQUIRE(got.defined() == expected.defined());
    if (!got.defined()) return;
    REQUIRE(got.dtype() == expected.dtype());
    CHECK(test::difference(test::doubles(got), test::doubles(expected), test::tolerance(got.dtype())) == "");
}

// Second derivatives of the fused kernel go through its decomposition, which rounds to 16 bit only at its
// end.
void close_to(const Tensor& got, const Tensor& expected, double relative) {
    REQUIRE(got.defined() == expected.defined());
    if (!got.defined()) return;
    const Tensor wide = expected.to(float64);
    CHECK(max(abs(got.to(float64) - wide)).item<double>() <= relative * max(abs(wide)).item<double>());
}

}  // namespace

TEST_CASE("linear: gradients of activation and bias in one kernel are the same", "[linear]") {
    const LinearActivation activation = GENERATE(LinearActivation::none, LinearActivation::relu,
                                                 LinearActivation::gelu, LinearActivation::gelu_tanh);
    const auto [dtype, autocast] = GENERATE(std::pair(float32, false), std::pair(float32, true),
                                            std::pair(float64, false), std::pair(float16, false));
    for (const Device device : test::devices()) {
        if (device == cpu_device) continue;  // an option of CUDA: gemm_plans_test
        const Run fused = gradients(true, activation, dtype, autocast, device),
                  apart = gradients(false, activation, dtype, autocast, device);
        for (std::size_t i = 0; i < 3; ++i) {
            CAPTURE(int(activation), name(dtype), autocast, name(device.type()), i);
            compare(fused.first[i], apart.first[i]);
            if (autocast || dtype == float16)
                close_to(fused.second[i], apart.second[i], autocast ? 0x1p-7 : 0x1p-9);
            else
                compare(fused.second[i], apart.second[i]);
        }
    }
}
