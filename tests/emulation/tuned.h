// Products whose algorithms are timed by an emulated clock, which moves as the stand-in for cuBLASLt says.
#pragma once

#include <catch2/catch.hpp>
#include <vector>

#include "cuda/gemm/gemm.h"
#include "mezzo/cuda.h"
#include "mezzo/device.h"
#include "tests/cuda/device_array.h"
#include "tests/emulation/engine.h"
#include "tests/emulation/fake_lt.h"

namespace mezzo::test {

using emulation::fake_lt;

inline constexpr Device gpu{DeviceType::cuda};

// Tuning with an emulated clock, a well-behaved library and no plans.
struct Tuned {
    emulation::Options old = emulation::options;
    Tuned() {
        reset();
        emulation::options.clock_ms = 0;
        for (double& ms : fake_lt.ms) ms = 1;
        cuda::set_gemm_options({.autotune = true});
    }
    ~Tuned() {
        reset();
        emulation::options = old;
    }
    static void reset() {
        fake_lt = {};
        cuda::set_gemm_options({});
        cuda::clear_gemm_plans();
    }
    static void times(double first, double second, double third) {
        fake_lt.ms[0] = first, fake_lt.ms[1] = second, fake_lt.ms[2] = third;
    }
};

// No plans, nothing is timed, and a device of the compute capability.
struct OnDevice : Tuned {
    explicit OnDevice(int capability = 90) {
        emulation::options.capability = capability;
        cuda::set_gemm_options({});
    }
};

// Each of mezzo's own kernels takes half a millisecond; what the library fuses costs nothing unless a test
// says otherwise. So the fullest epilogue that is right is chosen.
struct Clock : Tuned {
    Clock() { emulation::options.launch_ms = 0.5; }
};

// Small integers of both signs: products and sums are exact.
inline float number(std::int64_t i) { return float(int((std::uint32_t(i) * 2654435761u >> 16) % 5) - 2); }
template <class T = float> std::vector<T> numbers(std::size_t count, std::int64_t first) {
    std::vector<T> values;
    for (std::size_t i = 0; i < count; ++i) values.push_back(T(number(first + std::int64_t(i))));
    return values;
}

// C [4, 8] = A [4, k] B [k, 8], all ones, and a bias with which the activation gets both signs.
struct Product {
    std::vector<float> bias_values;
    DeviceArray<float> a, b, c, before, bias;
    cuda::Gemm g;
    explicit Product(std::int64_t k = 64)
        : a(std::vector<float>(std::size_t(4 * k), 1.0f)),
          b(std::vector<float>(std::size_t(8 * k), 1.0f)),
          c(32),
          before(32),
          bias(std::vector<float>{-float(k) - 2, -float(k) - 1, 0, 1, 2, 3, 4, 5}) {
        g.m = 4, g.n = g.ldc = g.ldb = 8;
        g.k = g.lda = k;
        g.a = a.data(), g.b = b.data(), g.c = c.data();
    }
    Product& with_bias(Activation activation) {
        g.bias = bias.data();
        g.activation = activation;
        return *this;
    }
    void run() {
        cuda::gemm(g);
        REQUIRE(c.host()[2] == float(g.k));
    }
};

// Runs the product and says by which algorithm, or -1 if by mezzo's own kernel.
inline int algorithm_of(Product& x) {
    fake_lt.last_operands = {};
    x.run();
    return fake_lt.last_operands.d == x.c.data() ? fake_lt.last_algorithm : -1;
}

}  // namespace mezzo::test
