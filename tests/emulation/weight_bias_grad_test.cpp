// The gradients of a linear layer's weight and bias by one product: every way through cuda::gemm, chosen by
// an emulated clock or forced by a library that misbehaves, and training steps that take it.
#include <catch2/catch.hpp>
#include <set>
#include <string>
#include <vector>

#include "cuda/runtime/runtime.h"
#include "mezzo/mezzo.h"
#include "tests/cpu/gemm_options_scope.h"
#include "tests/emulation/tuned.h"
#include "tests/support/folder.h"
#include "tests/support/support.h"

namespace {

using namespace mezzo;
using cuda::lt::Epilogue;
using emulation::fake_lt;
using emulation::FakeLt;
using test::Clock;
using test::DeviceArray;
using test::gpu;
using test::number;
using test::numbers;

// C [out, in] = g^T x + beta C and the column sums of g [rows, out].
struct WeightGrad {
    std::int64_t rows, outputs, inputs;
    DeviceArray<float16_t> g16, x16;
    DeviceArray<float> g32, x32, c, sums;
    cuda::Gemm g;
    explicit WeightGrad(std::int64_t height = 300, std::int64_t out = 24, std::int64_t in = 16)
        : rows(height),
          outputs(out),
          inputs(in),
          g16(numbers<float16_t>(std::size_t(rows * out), 1)),
          x16(numbers<float16_t>(std::size_t(rows * in), 2)),
          g32(numbers(std::size_t(rows * out), 1)),
          x32(numbers(std::size_t(rows * in), 2)),
          c(std::size_t(out * in)),
          sums(std::size_t(out) + 4) {
        g.m = g.lda = out, g.n = g.ldb = g.ldc = in, g.k = rows;
        g.trans_a = true;
        g.a = g16.data(), g.b = x16.data(), g.c = c.data();
        g.a_type = g.b_type = float16;
        g.a_sums = sums.data();
    }
    WeightGrad& in_float32() {
        g.a = g32.data(), g.b = x32.data();
        g.a_type = g.b_type = float32;
        return *this;
    }
    // Runs it over old results, compares, and says what the library did.
    Epilogue run() {
        cuda::copy_to_device(c.data(), std::vector<float>(c.size(), 99).data(), c.size() * sizeof(float));
        cuda::copy_to_device(sums.data(), std::vector<float>(sums.size(), 7.5f).data(),
                             sums.size() * sizeof(float));
        cuda::gemm(g);
        const auto got = c.host(), got_sums = sums.host();
        const auto at = std::size_t(static_cast<const float*>(g.a_sums) - sums.data());
        for (std::int64_t o = 0; o < outputs; ++o) {
            double total = 0;
            for (std::int64_t r = 0; r < rows; ++r) total += number(1 + r * outputs + o);
            REQUIRE(got_sums[at + std::size_t(o)] == total);
            for (std::int64_t i = 0; i < inputs; ++i) {
                double want = 99 * g.beta;
                for (std::int64_t r = 0; r < rows; ++r)
                    want += double(g.alpha) * number(1 + r * outputs + o) * number(2 + r * inputs + i);
                REQUIRE(got[std::size_t(o * inputs + i)] == want);
            }
        }
        for (std::size_t i = 0; i < got_sums.size(); ++i)
            REQUIRE((got_sums[i] == 7.5f) == (i < at || i >= at + std::size_t(outputs)));
        return fake_lt.last_problem.epilogue;
    }
    std::uint64_t launches() {
        const std::uint64_t before = cuda::counters().launches;
        cuda::gemm(g);
        return cuda::counters().launches - before;
    }
};

Tensor values(const Shape& shape, std::uint64_t seed, Device device) {
    return test::tensor_of(test::random_values(shape.numel(), seed, test::Domain::any), shape, float32,
                           device);
}

// The gradients of two layers after two backward passes under autocast.
Tensors trained(Device device) {
    manual_seed(3);
    nn::Sequential net{nn::Linear(16, 24), nn::ReLU(), nn::Linear(24, 8)};
    net.to(device);
    for (std::uint64_t pass = 0; pass < 2; ++pass) {
        Tensor y;
        {
            const amp::Autocast low({.device = device.type(), .dtype = float16});
            y = net(values({5, 8, 16}, 1 + pass, device));
        }
        autograd::backward({y}, {.grad_outputs = {values({5, 8, 8}, 5 + pass, device).to(y.dtype())}});
    }
    Tensors result;
    for (const Tensor& p : net.parameters()) result.push_back(p.grad());
    return result;
}

// The launches of the recipe's step: three layers with ReLU between them, mean squared error, SGD, in
// bfloat16 without a scaler.
std::uint64_t launches_of_recipe() {
    nn::Sequential net{nn::Linear(16, 16), nn::ReLU(), nn::Linear(16, 16), nn::ReLU(), nn::Linear(16, 16)};
    net.to(gpu);
    optim::SGD sgd(net.parameters(), {.lr = 0.1});
    const Tensor x = values({24, 16}, 1, gpu), y = values({24, 16}, 2, gpu);
    std::uint64_t before = 0;
    for (int step = 0; step < 3; ++step) {
        before = cuda::counters().launches;
        Tensor loss;
        {
            const amp::Autocast low({.dtype = bfloat16});
            loss = mse_loss(net(x), y);
        }
        loss.backward();
        sgd.step();
        sgd.zero_grad();
    }
    return cuda::counters().launches - before;
}

}  // namespace

TEST_CASE("weight and bias gradient: sums by the library or own ones, whichever is faster",
          "[cuda][gemm][emulation]") {
    const Clock clock;
    WeightGrad x;
    if (GENERATE(true, false)) x.in_float32();
    x.g.beta = GENERATE(0.0f, 1.0f);  // the sums are not added to what is there
    REQUIRE(x.run() == Epilogue::bgrad_b);
    REQUIRE(x.launches() == 1);
    fake_lt.bias_grad_ms = 1.5;
    cuda::clear_gemm_plans();
    REQUIRE(x.run() == Epilogue::none);
    REQUIRE(x.launches() >= 2);
}

TEST_CASE("weight and bias gradient: without autotune the sums are own ones", "[cuda][gemm][emulation]") {
    const Clock clock;
    cuda::set_gemm_options({});
    WeightGrad x(320);
    REQUIRE(x.run() == Epilogue::none);
    for (const cuda::lt::Problem& p : fake_lt.problems) REQUIRE(p.epilogue == Epilogue::none);
}

TEST_CASE("weight and bias gradient: wrong algorithms are found before their first use",
          "[cuda][gemm][emulation]") {
    const Clock clock;
    WeightGrad x(GENERATE(300, 320));
    SECTION("sums") {
        using enum FakeLt::BiasGrad;
        fake_lt.bias_grad = GENERATE(added, short_of_a_row, rounded, permuted);
        REQUIRE(x.run() == Epilogue::none);
    }
    SECTION("terms") {
        fake_lt.dropping_last = 2;
        REQUIRE(x.run() == Epilogue::bgrad_b);
        REQUIRE(fake_lt.last_algorithm == 2);
    }
    SECTION("those of a file") {
        REQUIRE(x.run() == Epilogue::bgrad_b);
        const test::Folder folder;
        REQUIRE(cuda::save_gemm_plans(folder.file("plans")) == 1);
        REQUIRE(folder.read("plans").find("\"bgrad_b\"") != std::string::npos);
        cuda::clear_gemm_plans();
        cuda::set_gemm_options({});
        REQUIRE(cuda::load_gemm_plans(folder.file("plans")).loaded == 1);
        const bool wrong = GENERATE(false, true);
        if (wrong) fake_lt.bias_grad = FakeLt::BiasGrad::permuted;
        REQUIRE(x.run() == (wrong ? Epilogue::none : Epilogue::bgrad_b));
    }
}

TEST_CASE("weight and bias gradient: what the library does not take", "[cuda][gemm][emulation]") {
    const Clock clock;
    WeightGrad x;
    SECTION("the epilogue") { fake_lt.refused = {Epilogue::bgrad_b}; }
    SECTION("less aligned sums") { x.g.a_sums = x.sums.data() + 1; }
    SECTION("a factor") { x.g.alpha = 2; }
    REQUIRE(x.run() == Epilogue::none);
}

TEST_CASE("weight and bias gradient: own kernels", "[cuda][gemm][emulation]") {
    const Clock clock;
    SECTION("operands of two types") {
        WeightGrad x;
        x.g.b = x.x32.data(), x.g.b_type = float32;
        x.run();
        REQUIRE(fake_lt.runs == 0);
    }
    SECTION("no algorithm") {
        fake_lt.no_algorithm = true;
        WeightGrad().run();
        REQUIRE(fake_lt.runs == 0);
    }
    SECTION("no rows") { WeightGrad(0).run(); }
    SECTION("no inputs") { WeightGrad(300, 24, 0).run(); }
    SECTION("one of everything") { WeightGrad(1, 1, 1).run(); }
    SECTION("a 16-bit result") {
        WeightGrad x;
        const DeviceArray<float16_t> c(x.c.size());
        x.g.c = c.data(), x.g.c_type = float16;
        cuda::gemm(x.g);
        REQUIRE(fake_lt.last_problem.epilogue == Epilogue::none);
        double total = 0;
        for (std::int64_t r = 0; r < x.rows; ++r) total += number(1 + r * x.outputs);
        REQUIRE(x.sums.host()[0] == total);
    }
}

TEST_CASE("weight and bias gradient: what it is not for is refused", "[cuda][gemm][emulation]") {
    WeightGrad x;
    SECTION("a batch") { x.g.batch = 2, x.g.stride_c = x.outputs * x.inputs; }
    SECTION("gaps") { x.g.m = 20; }
    SECTION("an activation") { x.g.activation = Activation::relu; }
    REQUIRE_THROWS_WITH(cuda::gemm(x.g), Catch::Contains("sums of A's rows"));
}

// The input to 16 bit, 3 products and the loss; the gradient of the loss and the last bias, 5 products, 2
// gradients of ReLU and biases; the update.
TEST_CASE("weight and bias gradient: launches of the recipe's step", "[cuda][linear][emulation]") {
    const Clock clock;
    cuda::set_gemm_options({});
    CHECK(launches_of_recipe() == 14);
    cuda::set_gemm_options({.autotune = true});
    cuda::clear_gemm_plans();
    CHECK(launches_of_recipe() == 14);
}

TEST_CASE("weight and bias gradient: accumulated in training", "[cuda][linear][emulation]") {
    const Clock clock;
    const bool tuned = GENERATE(true, false);
    cuda::set_gemm_options({.autotune = tuned, .fuse_bias_gradients = false, .fuse_layers = false});
    trained(gpu);
    std::multiset<Epilogue> seen;
    fake_lt.on_run = [&](const cuda::lt::Operands&) { seen.insert(fake_lt.last_problem.epilogue); };
    const Tensors got = trained(gpu);
    fake_lt.on_run = nullptr;
    REQUIRE(seen.count(Epilogue::bgrad_b) == (tuned ? 4 : 0));  // two layers, two passes
    const Tensors expected = trained(cpu_device);
    for (std::size_t i = 0; i < expected.size(); ++i) {
        CAPTURE(i);
        REQUIRE(got[i].dtype() == float32);
        CHECK(test::difference(test::doubles(got[i]), test::doubles(expected[i]), {2e-3, 4e-2}) == "");
    }
}
