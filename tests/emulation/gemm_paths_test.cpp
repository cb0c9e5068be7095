// Every way through cuda::gemm, forced by a GEMM library that misbehaves on request.
#include <catch2/catch.hpp>
#include <utility>
#include <vector>

#include "capture/step_memory.h"
#include "cuda/gemm/gemm.h"
#include "cuda/runtime/runtime.h"
#include "mezzo/cuda.h"
#include "mezzo/error.h"
#include "mezzo/matmul_precision.h"
#include "tests/cuda/device_array.h"
#include "tests/emulation/engine.h"
#include "tests/emulation/fake_lt.h"

namespace {

using namespace mezzo;
using emulation::fake_lt;
using test::DeviceArray;

// Each test starts with a well-behaved library and without plans, and ends so.
struct FreshLibrary {
    const emulation::Options options = emulation::options;
    FreshLibrary() { reset(); }
    ~FreshLibrary() {
        cuda::set_device(0);
        emulation::options = options;
        reset();
    }
    static void reset() {
        fake_lt = {};
        cuda::set_gemm_options({});
        cuda::clear_gemm_plans();
    }
};

// m = n = 4, A and B all ones, and a bias with which the activation gets both signs.
struct Ones {
    std::int64_t k;
    std::vector<float> bias_values;
    DeviceArray<float> a, b, c, bias, pre;
    cuda::Gemm g;
    explicit Ones(std::int64_t k_)
        : k(k_),
          bias_values{-float(k_) - 2, -float(k_) - 1, 1, 2},
          a(std::vector<float>(std::size_t(4 * k_), 1.0f)),
          b(std::vector<float>(std::size_t(4 * k_), 1.0f)),
          c(16),
          bias(bias_values),
          pre(16) {
        g.m = g.n = g.ldc = g.ldb = 4;
        g.k = g.lda = k;
        g.a = a.data(), g.b = b.data(), g.c = c.data();
    }
    void with_relu_bias() {
        g.bias = bias.data();
        g.activation = Activation::relu;
    }
    void run_and_check() {
        cuda::gemm(g);
        const auto got = c.host();
        for (std::size_t i = 0; i < 16; ++i) {
            float want = float(k);
            if (g.bias != nullptr) want += bias_values[i % 4];
            if (g.pre_activation != nullptr) REQUIRE(pre.host()[i] == want);
            if (g.activation == Activation::relu && want < 0) want = 0;
            REQUIRE(got[i] == want);
        }
    }
};

}  // namespace

TEST_CASE("gemm paths: plans are cached by everything an algorithm may depend on",
          "[cuda][gemm][emulation]") {
    const FreshLibrary fresh;
    Ones x(64);
    x.run_and_check();
    x.run_and_check();
    REQUIRE(fake_lt.heuristics == 1);
    REQUIRE(fake_lt.runs == 2);
    x.g.beta = 1;
    cuda::gemm(x.g);
    REQUIRE(fake_lt.heuristics == 2);
    x.g.beta = 0;
    x.g.a = x.a.data() + 1;  // less aligned; one row fewer stays inside
    x.g.m = 3;
    cuda::gemm(x.g);
    REQUIRE(fake_lt.heuristics == 3);
    REQUIRE(fake_lt.last_problem.align_b == 4);  // operands are swapped
    REQUIRE(fake_lt.last_problem.align_a == 256);
}

TEST_CASE("gemm paths: a fused epilogue is one call", "[cuda][gemm][emulation]") {
    const FreshLibrary fresh;
    Ones x(64);
    x.with_relu_bias();
    x.run_and_check();  // checks the epilogue
    const auto before = cuda::counters().launches;
    x.run_and_check();
    REQUIRE(cuda::counters().launches == before + 1);
    REQUIRE(fake_lt.last_problem.epilogue == cuda::lt::Epilogue::relu_bias);
    x.g.bias = nullptr;
    x.run_and_check();
    REQUIRE(fake_lt.last_problem.epilogue == cuda::lt::Epilogue::relu);
    x.g.activation = Activation::gelu_tanh;
    cuda::gemm(x.g);
    REQUIRE(fake_lt.last_problem.epilogue == cuda::lt::Epilogue::none);  // float32's GELU has an own kernel
    x.g.bias = x.bias.data();
    cuda::gemm(x.g);
    REQUIRE(fake_lt.last_problem.epilogue == cuda::lt::Epilogue::bias);
    x.g.activation = Activation::gelu;  // erf: only the bias is fused
    cuda::gemm(x.g);
    REQUIRE(fake_lt.last_problem.epilogue == cuda::lt::Epilogue::bias);
}

TEST_CASE("gemm paths: pre-activation goes through the own epilogue", "[cuda][gemm][emulation]") {
    const FreshLibrary fresh;
    Ones x(64);
    x.with_relu_bias();
    x.g.pre_activation = x.pre.data();
    x.run_and_check();
    REQUIRE(fake_lt.last_problem.epilogue == cuda::lt::Epilogue::bias);
}

TEST_CASE("gemm paths: no algorithm for the epilogue", "[cuda][gemm][emulation]") {
    const FreshLibrary fresh;
    fake_lt.no_fused = true;
    Ones x(64);
    x.with_relu_bias();
    const auto before = cuda::counters().launches;
    x.run_and_check();
    REQUIRE(fake_lt.last_problem.epilogue == cuda::lt::Epilogue::none);
    REQUIRE(cuda::counters().launches == before + 2);
    x.g.pre_activation = x.pre.data();
    x.run_and_check();
    x.run_and_check();
    REQUIRE(fake_lt.heuristics == 3);  // relu_bias, bias, none: the refusals are remembered
}

TEST_CASE("gemm paths: no algorithm at all", "[cuda][gemm][emulation]") {
    const FreshLibrary fresh;
    fake_lt.no_algorithm = true;
    Ones x(70);
    x.with_relu_bias();
    x.g.pre_activation = x.pre.data();
    x.run_and_check();
    REQUIRE(fake_lt.runs == 0);
    REQUIRE(fake_lt.heuristics == 2);
}

TEST_CASE("gemm paths: an algorithm that does not execute is skipped for good", "[cuda][gemm][emulation]") {
    const FreshLibrary fresh;
    fake_lt.failing = 1;
    Ones x(64);
    x.run_and_check();
    REQUIRE(fake_lt.last_algorithm == 1);
    REQUIRE(fake_lt.failed_runs == 1);
    x.run_and_check();
    REQUIRE(fake_lt.failed_runs == 1);
    fake_lt.failing = 100;  // now all: own kernel
    x.run_and_check();
    REQUIRE(fake_lt.last_algorithm == 1);
}

TEST_CASE("gemm paths: an algorithm that drops terms is rejected", "[cuda][gemm][emulation]") {
    const FreshLibrary fresh;
    const std::int64_t k = GENERATE(70, 1, 31, 600);
    fake_lt.dropping_tail = 2;
    Ones x(k);
    SECTION("plain") {
        x.run_and_check();
        REQUIRE(fake_lt.last_algorithm == 2);
        const int runs = fake_lt.runs;
        x.run_and_check();
        REQUIRE(fake_lt.runs == runs + 1);  // verified once
    }
    SECTION("fused") {
        x.with_relu_bias();
        x.run_and_check();
        REQUIRE(fake_lt.last_algorithm == 2);
        REQUIRE(fake_lt.last_problem.epilogue == cuda::lt::Epilogue::relu_bias);
    }
    SECTION("gelu") {
        const DeviceArray<float16_t> ones(std::vector<float16_t>(std::size_t(4 * k), float16_t(1))), c(16);
        x.g.a_type = x.g.b_type = x.g.c_type = float16;
        x.g.a = x.g.b = ones.data(), x.g.c = c.data();
        x.g.activation = Activation::gelu_tanh;
        cuda::gemm(x.g);
        REQUIRE(fake_lt.last_algorithm == 2);
        REQUIRE(fake_lt.last_problem.epilogue == cuda::lt::Epilogue::gelu_tanh);
        REQUIRE(float(c.host()[0]) == Approx(k == 1 ? 0.8412 : double(k)).epsilon(1e-3));
    }
    SECTION("transposed, batched") {
        const DeviceArray<float> c(32);
        x.g.trans_a = x.g.trans_b = true;
        x.g.lda = 4, x.g.ldb = k, x.g.c = c.data(), x.g.batch = 2, x.g.stride_c = 16;
        cuda::gemm(x.g);
        REQUIRE(c.host() == std::vector<float>(32, float(k)));
        REQUIRE(fake_lt.last_algorithm == 2);
    }
    SECTION("wrong in several blocks") {
        const std::size_t n = 25;
        const DeviceArray<float> ones(std::vector<float>(n * std::size_t(k), 1.0f)), c(n * n);
        x.g.m = x.g.n = x.g.ldb = x.g.ldc = std::int64_t(n);
        x.g.a = x.g.b = ones.data(), x.g.c = c.data();
        cuda::gemm(x.g);
        REQUIRE(c.host() == std::vector<float>(n * n, float(k)));
        REQUIRE(fake_lt.last_algorithm == 2);
    }
    SECTION("every algorithm") {
        fake_lt.dropping_tail = 100;
        x.run_and_check();
        REQUIRE(fake_lt.last_problem.batch == 1);
    }
}

TEST_CASE("gemm paths: terms lost are seen in 16-bit results, too", "[cuda][gemm][emulation]") {
    const FreshLibrary fresh;
    fake_lt.dropping_tail = 1;
    const std::int64_t k = 4097;  // float16 has no 4097: ones alone would hide the loss of one term
    const DeviceArray<float16_t> a(std::vector<float16_t>(std::size_t(2 * k), float16_t(0.125f))), c(4);
    cuda::Gemm g;
    g.m = g.n = g.ldc = 2, g.k = g.lda = k, g.ldb = 2;
    g.trans_a = GENERATE(false, true);
    if (g.trans_a) g.lda = 2;
    g.a = g.b = a.data(), g.c = c.data();
    g.a_type = g.b_type = g.c_type = float16;
    cuda::gemm(g);
    REQUIRE(fake_lt.last_algorithm == 1);
    REQUIRE(float(c.host()[0]) == 64);
}

TEST_CASE("gemm paths: one workspace per device", "[cuda][gemm][emulation]") {
    const FreshLibrary fresh;
    fake_lt.workspace = 1 << 20;
    Ones x(64);
    x.run_and_check();
    const std::size_t held = cuda::workspace_bytes();
    REQUIRE(held >= std::size_t(32) << 20);
    const void* first = fake_lt.last_workspace;
    REQUIRE(first != nullptr);
    x.with_relu_bias();
    x.run_and_check();
    REQUIRE(fake_lt.last_workspace == first);
    REQUIRE(cuda::workspace_bytes() == held);
}

TEST_CASE("gemm paths: the workspace is in the statistics, within the limit, in no step's plan",
          "[cuda][gemm][emulation]") {
    const FreshLibrary fresh;
    emulation::options.device_count = 6;
    const Device second(DeviceType::cuda, 5);  // where no product has been yet
    const std::size_t workspace = std::size_t(32) << 20, held = cuda::workspace_bytes();
    fake_lt.workspace = 1 << 20;
    fake_lt.failing = 1;  // the second candidate is the one
    Ones x(64);
    cuda::set_device(5);
    set_memory_limit(second, workspace - 1);
    REQUIRE_THROWS_WITH(cuda::gemm(x.g), Catch::Contains("out of memory on cuda:5") &&
                                             Catch::Contains("requested 33554432 bytes"));
    REQUIRE(cuda::workspace_bytes() == held);
    set_memory_limit(second, 0);
    {
        const MemoryTrace trace(second);
        x.run_and_check();
        REQUIRE(trace.lifetimes().empty());
    }
    REQUIRE(fake_lt.last_algorithm == 1);  // not given up for the memory it could not get
    REQUIRE(cuda::workspace_bytes() == held + workspace);
    REQUIRE(memory_stats(second).allocated == workspace);
    empty_cache(second);
    REQUIRE(memory_stats(second).reserved == workspace);
    x.run_and_check();
}

TEST_CASE("gemm paths: no memory to verify an algorithm is an error that passes", "[cuda][gemm][emulation]") {
    const FreshLibrary fresh;
    Ones x(70);
    empty_cache(Device(DeviceType::cuda));
    const std::size_t all =
        std::exchange(emulation::options.device_memory, emulation::Engine::get().device_bytes());
    REQUIRE_THROWS_AS(cuda::gemm(x.g), Error);
    emulation::options.device_memory = all;
    x.run_and_check();
    REQUIRE(fake_lt.last_algorithm == 0);
}

TEST_CASE("gemm paths: TF32 only when allowed", "[cuda][gemm][emulation]") {
    const FreshLibrary fresh;
    const float fine = 1.0f + 0x1p-12f;  // has no TF32
    const DeviceArray<float> a(std::vector<float>(64, fine)), b(std::vector<float>(64, 1.0f)), c(1);
    cuda::Gemm g;
    g.m = g.n = g.ldb = g.ldc = 1, g.k = g.lda = 64;
    g.a = a.data(), g.b = b.data(), g.c = c.data();
    cuda::gemm(g);
    REQUIRE(c.host()[0] == 64 * fine);
    for (const auto level : {Float32MatmulPrecision::high, Float32MatmulPrecision::medium}) {
        set_float32_matmul_precision(level);
        cuda::gemm(g);
        CHECK(c.host()[0] == 64.0f);
    }
    set_float32_matmul_precision(Float32MatmulPrecision::highest);
    cuda::gemm(g);
    REQUIRE(c.host()[0] == 64 * fine);
}

TEST_CASE("gemm paths: mixed operand types and k == 0 never reach the library", "[cuda][gemm][emulation]") {
    const FreshLibrary fresh;
    Ones x(64);
    const DeviceArray<float16_t> half(std::vector<float16_t>(256, float16_t(1.0f)));
    x.g.a = half.data(), x.g.a_type = float16;
    x.run_and_check();
    x.g.k = x.k = 0;
    x.run_and_check();
    REQUIRE(fake_lt.plans == 0);
}
