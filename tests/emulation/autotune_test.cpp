// Timed choice of GEMM algorithms.
#include <catch2/catch.hpp>
#include <cmath>
#include <utility>
#include <vector>

#include "cuda/gemm/fallbacks.h"
#include "cuda/gemm/plans.h"
#include "cuda/runtime/runtime.h"
#include "mezzo/mezzo.h"
#include "tests/emulation/tuned.h"
#include "tests/support/folder.h"

namespace {

using namespace mezzo;
using cuda::lt::Epilogue;
using emulation::fake_lt;
using test::algorithm_of;
using test::DeviceArray;
using test::Product;
using test::Tuned;

}  // namespace

TEST_CASE("autotune: off unless asked for", "[cuda][gemm][emulation]") {
    const Tuned tuned;
    cuda::set_gemm_options({});
    Tuned::times(3, 2, 1);
    Product x;
    REQUIRE(algorithm_of(x) == 0);
    REQUIRE(fake_lt.runs == 1);
}

TEST_CASE("autotune: the fastest algorithm, timed once", "[cuda][gemm][emulation]") {
    const Tuned tuned;
    Tuned::times(3, 1, 2);
    Product x;
    REQUIRE(algorithm_of(x) == 1);
    const int runs = fake_lt.runs;
    // per candidate one check, 3 warm-ups and 10 timed runs; then the product itself
    REQUIRE(runs == 3 * (1 + 3 + 10) + 1);
    REQUIRE(algorithm_of(x) == 1);
    REQUIRE(fake_lt.runs == runs + 1);
    fake_lt.failing = 2;  // the fastest does not run any more: the second fastest
    REQUIRE(algorithm_of(x) == 2);
    fake_lt.failing = 0;
    cuda::clear_gemm_plans();
    cuda::set_gemm_options({.autotune = true, .candidates = 1});
    REQUIRE(algorithm_of(x) == 0);
}

TEST_CASE("autotune: short runs are timed by the group", "[cuda][gemm][emulation]") {
    const Tuned tuned;
    Tuned::times(0.019, 0.002, 0.001);
    Product x;
    REQUIRE(algorithm_of(x) == 2);
    REQUIRE(fake_lt.runs == 3 * (1 + 3 + 10 * 20) + 1);
}

TEST_CASE("autotune: equal times keep the library's order", "[cuda][gemm][emulation]") {
    const Tuned tuned;
    Product x;
    REQUIRE(algorithm_of(x) == 0);
    Tuned::times(2, 1, 1);
    cuda::clear_gemm_plans();
    REQUIRE(algorithm_of(x) == 1);
    cuda::clear_gemm_plans();
    Tuned::times(1, 1, 1);
    emulation::options.launch_ms = 0.5;
    fake_lt.fused_ms = 0.5;  // as long as the own kernel takes
    x.with_bias(Activation::none).run();
    REQUIRE(fake_lt.last_problem.epilogue == Epilogue::bias);
}

TEST_CASE("autotune: a wrong algorithm is rejected however fast", "[cuda][gemm][emulation]") {
    const Tuned tuned;
    Tuned::times(1, 2, 3);
    const auto [tail, last, k] = GENERATE(std::tuple(2, 0, 70), std::tuple(0, 2, 70), std::tuple(0, 2, 64),
                                          std::tuple(0, 2, 4096));  // the last term, whatever k is
    fake_lt.dropping_tail = tail;
    fake_lt.dropping_last = last;
    Product x(k);
    REQUIRE(algorithm_of(x) == 2);
    REQUIRE(x.c.host() == std::vector<float>(32, float(k)));
    fake_lt.dropping_last = 100;  // all are wrong: own kernel
    cuda::clear_gemm_plans();
    REQUIRE(algorithm_of(x) == -1);
    REQUIRE(x.c.host() == std::vector<float>(32, float(k)));
}

TEST_CASE("autotune: an algorithm that does not execute is skipped", "[cuda][gemm][emulation]") {
    const Tuned tuned;
    Tuned::times(1, 3, 2);
    fake_lt.failing = 1;
    Product x;
    REQUIRE(algorithm_of(x) == 2);
    fake_lt.failing = 100;
    cuda::clear_gemm_plans();
    REQUIRE(algorithm_of(x) == -1);
}

TEST_CASE("autotune: an algorithm that is invalid for the product is no wrong descriptor",
          "[cuda][gemm][emulation]") {
    const Tuned tuned;
    Tuned::times(1, 3, 2);
    fake_lt.status_of_failing = 7;  // CUBLAS_STATUS_INVALID_VALUE
    Product x;
    const std::uint64_t before = cuda::gemm_fallbacks().invalid;
    SECTION("in its trial") {
        fake_lt.on_run = [](const cuda::lt::Operands&) { fake_lt.failing = 1; };  // passes the check
        REQUIRE(algorithm_of(x) == 2);
        REQUIRE(fake_lt.failed_runs == 1);
        REQUIRE(cuda::gemm_fallbacks().invalid == before);
    }
    SECTION("after it was chosen") {
        REQUIRE(algorithm_of(x) == 0);
        fake_lt.failing = 1;
        REQUIRE(algorithm_of(x) == 2);
        REQUIRE(cuda::gemm_fallbacks().invalid == before + 1);
    }
}

TEST_CASE("autotune: an algorithm that passes the check and then does not execute",
          "[cuda][gemm][emulation]") {
    const Tuned tuned;
    Tuned::times(1, 3, 2);
    fake_lt.on_run = [](const cuda::lt::Operands&) { fake_lt.failing = 1; };
    Product x;
    x.run();
    REQUIRE(fake_lt.failed_runs == 1);  // and is not tried again
    REQUIRE(algorithm_of(x) == 2);
    REQUIRE(fake_lt.failed_runs == 1);
}

TEST_CASE("autotune: timing leaves the caller's results alone", "[cuda][gemm][emulation]") {
    const Tuned tuned;
    Product x;
    cuda::copy_to_device(x.c.data(), std::vector<float>(32, 5.0f).data(), 32 * sizeof(float));
    x.g.beta = 1;
    cuda::gemm(x.g);
    REQUIRE(x.c.host() == std::vector<float>(32, 69.0f));
}

TEST_CASE("autotune: operands take turns in more memory than the L2 cache", "[cuda][gemm][emulation]") {
    const Tuned tuned;
    emulation::options.l2_bytes = 8 << 10;
    Product x;
    // A 1 KiB, B 2 KiB, C 128 bytes in 256: 3328 bytes, so 5 copies
    cuda::GemmService& s = cuda::gemm_service();
    const std::lock_guard lock(s.mutex);
    std::vector<const void*> seen;
    const auto allocated = [] { return memory_stats(Device(DeviceType::cuda)).allocated; };
    const std::size_t before = allocated();
    std::size_t most = before;
    fake_lt.on_run = [&](const cuda::lt::Operands& o) {
        seen.push_back(o.b);
        most = std::max(most, allocated());
    };
    cuda::tune(s, x.g, {Epilogue::none});
    REQUIRE(seen.size() == 42);
    REQUIRE(most >= before + (16 << 10));
    REQUIRE(allocated() == before);
    for (std::size_t i = 1; i + 5 < 14; ++i) {  // the first is the check's
        for (std::size_t j = 1; j < 5; ++j) REQUIRE(seen[i] != seen[i + j]);
        REQUIRE(seen[i] == seen[i + 5]);
        REQUIRE(seen[i] != x.a.data());
    }
}

TEST_CASE("autotune: fused or not, whichever is faster", "[cuda][gemm][emulation]") {
    const Tuned tuned;
    emulation::options.launch_ms = 0.5;  // an own kernel
    const auto [extra, expected] =
        GENERATE(std::pair(0.1, Epilogue::relu_bias), std::pair(0.9, Epilogue::none));
    fake_lt.fused_ms = extra;
    Product x;
    x.with_bias(Activation::relu);
    const auto check_values = [&] {
        const auto got = x.c.host();
        for (std::size_t i = 0; i < 32; ++i) REQUIRE(got[i] == (i % 8 < 2 ? 0.0f : 64.0f + float(i % 8) - 2));
    };
    x.run();
    check_values();
    REQUIRE(fake_lt.last_problem.epilogue == expected);
    const auto before = cuda::counters().launches;
    x.run();
    check_values();
    REQUIRE(cuda::counters().launches == before + (expected == Epilogue::none ? 2 : 1));
    // With an activation the library lacks there is an own kernel anyway, and a fused bias saves nothing.
    x.g.activation = Activation::gelu;
    cuda::gemm(x.g);
    REQUIRE(fake_lt.last_problem.epilogue == Epilogue::none);
}

TEST_CASE("autotune: the GELU epilogue that also stores its input", "[cuda][gemm][emulation]") {
    const Tuned tuned;
    emulation::options.launch_ms = 0.5;
    fake_lt.precise_gelu = true;
    Product x;
    x.with_bias(Activation::gelu_tanh);
    x.g.pre_activation = x.before.data();
    const auto before = [](std::size_t i) { return i % 8 < 2 ? float(i % 8) - 2 : 64.0f + float(i % 8) - 2; };
    const auto check_values = [&] {
        const auto kept = x.before.host(), got = x.c.host();
        for (std::size_t i = 0; i < 32; ++i) {
            const double v = before(i);
            REQUIRE(kept[i] == before(i));
            REQUIRE(got[i] ==
                    Approx(0.5 * v * (1 + std::tanh(0.79788456080286535588 * (v + 0.044715 * v * v * v)))));
        }
    };
    SECTION("when it is faster") {
        cuda::gemm(x.g);
        check_values();
        REQUIRE(fake_lt.last_problem.epilogue == Epilogue::gelu_tanh_aux_bias);
        x.g.bias = nullptr;
        cuda::gemm(x.g);
        REQUIRE(fake_lt.last_problem.epilogue == Epilogue::gelu_tanh_aux);
        REQUIRE(x.before.host() == std::vector<float>(32, 64.0f));
    }
    SECTION("not when it is slower") {
        fake_lt.aux_ms = 0.9;
        cuda::gemm(x.g);
        check_values();
        REQUIRE(fake_lt.last_problem.epilogue == Epilogue::bias);
    }
    SECTION("not when it forgets the input") {
        fake_lt.forgets_aux = true;
        cuda::gemm(x.g);
        check_values();
        REQUIRE(fake_lt.last_problem.epilogue == Epilogue::bias);
    }
    SECTION("not where the rows do not fit it") {
        const DeviceArray<float> kept(33);
        x.g.pre_activation = kept.data() + 1;
        cuda::gemm(x.g);
        REQUIRE(fake_lt.last_problem.epilogue == Epilogue::bias);
        x.g.pre_activation = x.before.data();
        x.g.n = x.g.ldc = 4;  // B keeps its leading dimension
        cuda::gemm(x.g);
        REQUIRE(fake_lt.last_problem.epilogue == Epilogue::bias);
    }
    SECTION("not without autotune") {
        cuda::set_gemm_options({});
        cuda::gemm(x.g);
        check_values();
        REQUIRE(fake_lt.last_problem.epilogue == Epilogue::bias);
    }
}

TEST_CASE("autotune: never while a stream is captured", "[cuda][gemm][emulation]") {
    const Tuned tuned;
    Tuned::times(2, 1, 3);
    Product x;
    emulation::options.capturing = true;
    const auto syncs = cuda::counters().host_syncs;
    cuda::gemm(x.g);
    REQUIRE(fake_lt.last_algorithm == 0);
    REQUIRE(fake_lt.runs == 1);
    REQUIRE(cuda::counters().host_syncs == syncs);
    emulation::options.capturing = false;
    REQUIRE(algorithm_of(x) == 1);  // tuned now
    emulation::options.capturing = true;
    fake_lt.last_algorithm = -1;
    cuda::gemm(x.g);
    REQUIRE(fake_lt.last_algorithm == 1);
}

TEST_CASE("autotune: without memory for copies the library's order stays", "[cuda][gemm][emulation]") {
    const Tuned tuned;
    Tuned::times(3, 2, 1);
    Product x;
    empty_cache({DeviceType::cuda});
    emulation::options.device_memory = emulation::Engine::get().device_bytes();
    cuda::gemm(x.g);
    emulation::options.device_memory = tuned.old.device_memory;
    REQUIRE(fake_lt.last_algorithm == 0);
    REQUIRE(algorithm_of(x) == 0);
    const test::Folder folder;
    REQUIRE(cuda::save_gemm_plans(folder.file("plans")) == 0);
}

// No product of a linear layer has the batch as a leading dimension, so an odd batch costs no alignment.
TEST_CASE("gemm: a ragged batch keeps aligned algorithms", "[cuda][gemm][emulation]") {
    const Tuned tuned;
    cuda::set_gemm_options({});
    const Device device(DeviceType::cuda);
    const std::int64_t batch = GENERATE(512, 513);
    Tensor weight = ones({16, 24}, {.dtype = float16, .device = device});
    Tensor x = ones({batch, 24}, {.dtype = float16, .device = device});
    weight.set_requires_grad(true);
    x.set_requires_grad(true);
    sum(linear(x, weight)).backward();
    REQUIRE(fake_lt.problems.size() == 3);
    for (const cuda::lt::Problem& p : fake_lt.problems) {
        for (const std::int64_t ld : {p.lda, p.ldb, p.ldd}) REQUIRE((ld == 16 || ld == 24));
        for (const std::uint16_t bytes : {p.align_a, p.align_b, p.align_d}) REQUIRE(bytes == 256);
    }
}

TEST_CASE("gemm: algorithms are asked for with the alignment that pointers have", "[cuda][gemm][emulation]") {
    const Tuned tuned;
    cuda::set_gemm_options({});
    fake_lt.vector_algorithm = true;
    const std::size_t m = 513, n = 16, k = 64;
    const DeviceArray<float16_t> a(std::vector<float16_t>((m + 1) * k, float16_t(1.0f))),
        b(std::vector<float16_t>(n * k, float16_t(1.0f))), c(m * n);
    cuda::Gemm g;
    g.m = m, g.n = n, g.k = k;
    g.lda = k, g.ldb = g.ldc = n;
    g.a = a.data(), g.b = b.data(), g.c = c.data();
    g.a_type = g.b_type = g.c_type = float16;
    cuda::gemm(g);
    REQUIRE(fake_lt.last_algorithm == 2);  // the one for whole vectors
    g.a = a.data() + 8;                    // 16 bytes on
    cuda::gemm(g);
    REQUIRE(fake_lt.problems.back().align_b == 16);
    REQUIRE(fake_lt.last_algorithm == 2);
    g.a = a.data() + 1;
    cuda::gemm(g);
    REQUIRE(fake_lt.problems.back().align_b == 2);
    REQUIRE(fake_lt.last_algorithm == 0);
    REQUIRE(float(c.host().back()) == 64);
}

TEST_CASE("linear: gradients of activation and bias are one launch less when asked for",
          "[cuda][emulation]") {
    const Tuned tuned;
    const Device device(DeviceType::cuda);
    const Tensor x = ones({4, 8}, {.device = device}),
                 weight = ones({8, 8}, {.device = device}).set_requires_grad(),
                 bias = ones({8}, {.device = device}).set_requires_grad();
    const auto launches_of = [&](bool fused) {
        cuda::set_gemm_options({.fuse_bias_gradients = fused});
        const Tensor y = linear(x, weight, bias, LinearActivation::relu);
        const Tensor g = ones_like(y);
        const auto before = cuda::counters().launches;
        autograd::grad({y}, {bias}, {.grad_outputs = {g}});
        return cuda::counters().launches - before;
    };
    REQUIRE(launches_of(false) == 2);
    REQUIRE(launches_of(true) == 1);
}
