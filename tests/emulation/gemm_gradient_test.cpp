// Products with a ReLU mask, and products that end in the gradient of an activation: every way through
// cuda::gemm, chosen by an emulated clock or forced by a library that misbehaves.
#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <vector>

#include "cuda/runtime/runtime.h"
#include "tests/emulation/tuned.h"
#include "tests/support/folder.h"

namespace {

using namespace mezzo;
using cuda::lt::Epilogue;
using emulation::fake_lt;
using emulation::FakeLt;
using test::DeviceArray;
using test::number;
using test::numbers;
using test::Tuned;

bool bit(const std::vector<std::uint8_t>& mask, std::int64_t columns, std::size_t row, std::size_t column) {
    const std::size_t at = row * std::size_t(relu_mask_ld(columns)) + column;
    return (mask[at / 8] >> at % 8 & 1) != 0;
}

std::vector<std::uint8_t> mask_of(const std::vector<float>& y, std::int64_t rows, std::int64_t columns) {
    std::vector<std::uint8_t> mask(std::size_t(relu_mask_bytes(rows, columns)));
    for (std::size_t i = 0; i < y.size(); ++i) {
        const std::size_t at =
            i / std::size_t(columns) * std::size_t(relu_mask_ld(columns)) + i % std::size_t(columns);
        if (y[i] > 0) mask[at / 8] |= std::uint8_t(1u << at % 8);
    }
    return mask;
}

double slope(Activation activation, double x) {
    if (activation == Activation::relu) return x > 0;
    const double c = 0.79788456080286535588;
    if (activation == Activation::gelu)
        return 0.5 * (1 + std::erf(x / std::sqrt(2.0))) +
               x * std::exp(-x * x / 2) / std::sqrt(6.283185307179586);
    const double t = std::tanh(c * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x);
}

constexpr std::int64_t rows = 40;

// C [40, n] = (A [40, k] B [k, n]) activation'(saved) and its column sums.
struct Gradient {
    std::int64_t n, inner;
    std::vector<float> host_a, host_b, host_kept;
    DeviceArray<float> a, b, c, saved, sums;
    DeviceArray<std::uint8_t> mask;
    cuda::Gemm g;
    explicit Gradient(Activation activation, std::int64_t columns = 16, std::int64_t k = 25)
        : n(columns),
          inner(k),
          host_a(numbers(std::size_t(rows * inner), 1)),
          host_b(numbers(std::size_t(inner * n), 2)),
          host_kept(numbers(std::size_t(rows * n), 3)),
          a(host_a),
          b(host_b),
          c(std::size_t(rows * n)),
          saved(relu_of(host_kept, activation)),
          sums(std::size_t(n) + 4),
          mask(mask_of(host_kept, rows, n)) {
        g.m = rows, g.n = g.ldb = g.ldc = n, g.k = g.lda = inner;
        g.a = a.data(), g.b = b.data(), g.c = c.data();
        g.activation = activation;
        g.saved = saved.data(), g.bias_grad = sums.data();
        if (activation == Activation::relu) g.mask = mask.data();
    }
    static std::vector<float> relu_of(std::vector<float> x, Activation activation) {
        for (float& v : x) v = activation == Activation::relu && v < 0 ? 0 : v;
        return x;
    }
    // Runs it, checks the values, and returns the epilogue that the library did.
    Epilogue run() {
        cuda::copy_to_device(c.data(), std::vector<float>(c.size(), 99).data(), c.size() * sizeof(float));
        cuda::copy_to_device(sums.data(), std::vector<float>(std::size_t(n), 99).data(), std::size_t(n) * 4);
        cuda::gemm(g);
        const auto got = c.host(), got_sums = sums.host();
        for (std::int64_t j = 0; j < n; ++j) {
            double total = 0;
            for (std::int64_t i = 0; i < rows; ++i) {
                double sum = 0;
                for (std::int64_t l = 0; l < g.k; ++l)
                    sum += double(host_a[std::size_t(i * inner + l)]) * host_b[std::size_t(l * n + j)];
                const double want = sum * slope(g.activation, host_kept[std::size_t(i * n + j)]);
                CAPTURE(i, j);
                REQUIRE(got[std::size_t(i * n + j)] == Approx(want).margin(1e-5));
                total += want;
            }
            if (g.bias_grad == sums.data()) REQUIRE(got_sums[std::size_t(j)] == Approx(total).margin(1e-4));
        }
        return fake_lt.last_problem.epilogue;
    }
};

// The library's GELU is right for float32, too.
struct Clock : test::Clock {
    Clock() { fake_lt.precise_gelu = true; }
};

// y [rows, n] = relu(A B + bias) with its mask.
struct Masked {
    std::int64_t n, rows, inner = 25;
    std::vector<float> host_a, host_b, host_bias;
    DeviceArray<float> a, b, c, bias;
    DeviceArray<std::uint8_t> mask;
    cuda::Gemm g;
    explicit Masked(std::int64_t columns = 16, std::int64_t height = 40)
        : n(columns),
          rows(height),
          host_a(numbers(std::size_t(rows * inner), 1)),
          host_b(numbers(std::size_t(inner * n), 2)),
          host_bias(numbers(std::size_t(n), 4)),
          a(host_a),
          b(host_b),
          c(std::size_t(rows * n)),
          bias(host_bias),
          mask(std::size_t(relu_mask_bytes(rows, n)) + 16) {
        g.m = rows, g.n = g.ldb = g.ldc = n, g.k = g.lda = inner;
        g.a = a.data(), g.b = b.data(), g.c = c.data();
        g.bias = bias.data();
        g.activation = Activation::relu;
        g.mask = mask.data();
    }
    Epilogue run() {
        cuda::copy_to_device(c.data(), std::vector<float>(c.size(), 99).data(), c.size() * sizeof(float));
        cuda::copy_to_device(mask.data(), std::vector<std::uint8_t>(mask.size(), 0xaa).data(), mask.size());
        cuda::gemm(g);
        const auto got = c.host();
        auto bits = mask.host();
        bits.erase(bits.begin(), bits.begin() + (static_cast<const std::uint8_t*>(g.mask) - mask.data()));
        int zeros = 0;
        for (std::size_t i = 0; i < std::size_t(rows); ++i)
            for (std::size_t j = 0; j < std::size_t(n); ++j) {
                float want = g.bias != nullptr ? host_bias[j] : 0;
                for (std::size_t l = 0; l < std::size_t(inner); ++l)
                    want += host_a[i * std::size_t(inner) + l] * host_b[l * std::size_t(n) + j];
                CAPTURE(i, j, want);
                REQUIRE(got[i * std::size_t(n) + j] == (want > 0 ? want : 0));
                REQUIRE(bit(bits, n, i, j) == (want > 0));
                zeros += want == 0;
            }
        REQUIRE((zeros > 0 || n < 16));
        return fake_lt.last_problem.epilogue;
    }
};

}  // namespace

TEST_CASE("gemm gradient: library, library and own sums, or own kernel, whichever is faster",
          "[cuda][gemm][emulation]") {
    const Clock clock;
    const bool relu = GENERATE(true, false);
    Gradient x(relu ? Activation::relu : Activation::gelu_tanh);
    const auto launches_of_run = [&] {
        const auto before = cuda::counters().launches;
        x.run();
        return cuda::counters().launches - before;
    };
    SECTION("all of it") {
        REQUIRE(x.run() == (relu ? Epilogue::drelu_bgrad : Epilogue::dgelu_tanh_bgrad));
        REQUIRE(launches_of_run() == 1);
    }
    SECTION("own sums") {
        fake_lt.bias_grad_ms = 0.9;
        REQUIRE(x.run() == (relu ? Epilogue::drelu : Epilogue::dgelu_tanh));
        REQUIRE(launches_of_run() == 2);
    }
    SECTION("own kernel") {
        fake_lt.fused_ms = 0.9;
        REQUIRE(x.run() == Epilogue::none);
        REQUIRE(launches_of_run() == 2);
    }
    SECTION("without the gradient of a bias") {
        x.g.bias_grad = nullptr;
        REQUIRE(x.run() == (relu ? Epilogue::drelu : Epilogue::dgelu_tanh));
        REQUIRE(launches_of_run() == 1);
        cuda::clear_gemm_plans();
        fake_lt.fused_ms = 0.9;
        REQUIRE(x.run() == Epilogue::none);
    }
}

TEST_CASE("gemm gradient: beside 16-bit results the sums are mezzo's own, in float32",
          "[cuda][gemm][emulation]") {
    const Clock clock;
    for (const Activation activation : {Activation::relu, Activation::gelu_tanh}) {
        Gradient x(activation);
        const auto halves = [](const std::vector<float>& v) {
            return std::vector<float16_t>(v.begin(), v.end());
        };
        const DeviceArray<float16_t> a(halves(x.host_a)), b(halves(x.host_b)), c(x.c.size()),
            saved(halves(x.saved.host()));
        x.g.a = a.data(), x.g.b = b.data(), x.g.c = c.data(), x.g.saved = saved.data();
        x.g.a_type = x.g.b_type = x.g.c_type = float16;
        cuda::gemm(x.g);
        REQUIRE(fake_lt.last_problem.epilogue ==
                (activation == Activation::relu ? Epilogue::drelu : Epilogue::dgelu_tanh));
        const auto got = c.host();
        const auto sums = x.sums.host();
        for (std::size_t j = 0; j < 16; ++j) {
            double total = 0;
            for (std::size_t i = 0; i < std::size_t(rows); ++i) total += float(got[i * 16 + j]);
            REQUIRE(sums[j] == Approx(total).margin(1e-4));
        }
    }
    // it was not even asked: the documented type of the sums is that of the result
    for (const cuda::lt::Problem& p : fake_lt.problems) REQUIRE_FALSE(has_bias_grad(p.epilogue));
}

TEST_CASE("gemm gradient: without autotune the library does the product only", "[cuda][gemm][emulation]") {
    const Clock clock;
    cuda::set_gemm_options({});
    for (Activation activation : {Activation::relu, Activation::gelu, Activation::gelu_tanh})
        REQUIRE(Gradient(activation).run() == Epilogue::none);
    for (const cuda::lt::Problem& p : fake_lt.problems) REQUIRE(p.epilogue == Epilogue::none);
}

TEST_CASE("gemm gradient: what the library does not take", "[cuda][gemm][emulation]") {
    const Clock clock;
    SECTION("an epilogue") {
        fake_lt.refused = {Epilogue::drelu_bgrad, Epilogue::dgelu_tanh_bgrad};
        REQUIRE(Gradient(Activation::relu).run() == Epilogue::drelu);
        REQUIRE(Gradient(Activation::gelu_tanh).run() == Epilogue::dgelu_tanh);
        fake_lt.refused = {Epilogue::drelu, Epilogue::drelu_bgrad};
        cuda::clear_gemm_plans();
        REQUIRE(Gradient(Activation::relu).run() == Epilogue::none);
        fake_lt.no_algorithm = true;
        fake_lt.last_problem = {};
        cuda::clear_gemm_plans();
        const int runs = fake_lt.runs;
        Gradient(Activation::relu).run();
        REQUIRE(fake_lt.runs == runs);
    }
    SECTION("erf") { REQUIRE(Gradient(Activation::gelu).run() == Epilogue::none); }
    SECTION("relu without a mask") {
        Gradient x(Activation::relu);
        x.g.mask = nullptr;
        REQUIRE(x.run() == Epilogue::none);
    }
    SECTION("a mask, sums or a matrix less aligned than 16 bytes") {
        Gradient x(Activation::relu);
        x.g.bias_grad = x.sums.data() + 1;
        REQUIRE(x.run() == Epilogue::drelu);
        const DeviceArray<std::uint8_t> bits(std::size_t(relu_mask_bytes(rows, 16)) + 8);
        cuda::copy_on_device(bits.data() + 8, x.mask.data(), x.mask.size());
        x.g.mask = bits.data() + 8;
        REQUIRE(x.run() == Epilogue::none);
        Gradient y(Activation::gelu_tanh);
        const DeviceArray<float> saved(y.saved.size() + 1);
        cuda::copy_on_device(saved.data() + 1, y.saved.data(), y.saved.size() * sizeof(float));
        y.g.saved = saved.data() + 1;
        REQUIRE(y.run() == Epilogue::none);
    }
    SECTION("rows of other than 8 elements") {
        REQUIRE(Gradient(Activation::gelu_tanh, 12).run() == Epilogue::none);
        REQUIRE(Gradient(Activation::relu, 12).run() == Epilogue::drelu_bgrad);
        REQUIRE(Gradient(Activation::relu, 131).run() == Epilogue::drelu_bgrad);
    }
    SECTION("other types, nothing to sum, no rows") {
        const int plans = fake_lt.plans;
        Gradient x(Activation::relu);
        const DeviceArray<float16_t> half(std::vector<float16_t>(x.host_a.begin(), x.host_a.end()));
        x.g.a = half.data(), x.g.a_type = float16;
        x.run();
        x.g.k = 0;
        x.run();
        x.g.m = 0;
        cuda::gemm(x.g);
        for (std::size_t j = 0; j < 16; ++j) REQUIRE(x.sums.host()[j] == 0);
        REQUIRE(fake_lt.plans == plans);
    }
}

TEST_CASE("gemm gradient: wrong algorithms are found before their first use", "[cuda][gemm][emulation]") {
    const Clock clock;
    SECTION("masks") {
        using enum FakeLt::Mask;
        fake_lt.mask = GENERATE(big_endian, packed, transposed, ignored);
        REQUIRE(Gradient(Activation::relu).run() == Epilogue::none);
        REQUIRE(Gradient(Activation::gelu_tanh).run() == Epilogue::dgelu_tanh_bgrad);
    }
    SECTION("sums") {
        using enum FakeLt::BiasGrad;
        fake_lt.bias_grad = GENERATE(added, short_of_a_row, rounded);
        REQUIRE(Gradient(Activation::relu).run() == Epilogue::drelu);
        REQUIRE(Gradient(Activation::gelu_tanh).run() == Epilogue::dgelu_tanh);
    }
    SECTION("slopes") {
        fake_lt.half_slope = true;
        REQUIRE(Gradient(Activation::gelu_tanh).run() == Epilogue::none);
    }
    SECTION("terms") {
        fake_lt.dropping_last = 2;
        REQUIRE(Gradient(Activation::relu).run() == Epilogue::drelu_bgrad);
        REQUIRE(fake_lt.last_algorithm == 2);
    }
}

TEST_CASE("gemm gradient: algorithms that do not execute", "[cuda][gemm][emulation]") {
    const Clock clock;
    Gradient x(Activation::relu, 16, GENERATE(25, 64));
    fake_lt.failing = 1;
    REQUIRE(x.run() == Epilogue::drelu_bgrad);
    REQUIRE(fake_lt.last_algorithm == 1);
    fake_lt.failing = 2;  // the chosen one does not run any more: the next, which is checked again
    fake_lt.mask = FakeLt::Mask::transposed;
    REQUIRE(x.run() == Epilogue::none);
    fake_lt.mask = FakeLt::Mask::right;
    fake_lt.failing = 100;
    x.run();  // own kernels
}

TEST_CASE("gemm gradient: batches and gaps are refused", "[cuda][gemm][emulation]") {
    const Clock clock;
    Gradient x(Activation::relu);
    x.g.batch = 2, x.g.stride_c = rows * 16;
    REQUIRE_THROWS_WITH(cuda::gemm(x.g), Catch::Contains("one matrix without gaps"));
    x.g.batch = 1, x.g.ldc = 20;
    REQUIRE_THROWS_WITH(cuda::gemm(x.g), Catch::Contains("one matrix without gaps"));
    x.g.ldc = 16, x.g.beta = 1;
    REQUIRE_THROWS_WITH(cuda::gemm(x.g), Catch::Contains("beta = 1 with an activation"));
}

TEST_CASE("gemm mask: from the library or by an own kernel, whichever is faster", "[cuda][gemm][emulation]") {
    const Clock clock;
    Masked x;
    REQUIRE(x.run() == Epilogue::relu_aux_bias);
    const auto before = cuda::counters().launches;
    x.run();
    REQUIRE(cuda::counters().launches == before + 1);
    x.g.bias = nullptr;
    REQUIRE(x.run() == Epilogue::relu_aux);
    fake_lt.aux_ms = 0.9;
    cuda::clear_gemm_plans();
    REQUIRE(x.run() == Epilogue::relu);
    x.g.bias = x.bias.data();
    REQUIRE(x.run() == Epilogue::relu_bias);
    fake_lt.fused_ms = 0.9;
    cuda::clear_gemm_plans();
    REQUIRE(x.run() == Epilogue::none);
    cuda::set_gemm_options({});
    cuda::clear_gemm_plans();
    REQUIRE(x.run() == Epilogue::relu_bias);
    for (std::int64_t n : {1, 7, 128, 130}) Masked(n).run();
}

TEST_CASE("gemm mask: what the library does not take or does otherwise", "[cuda][gemm][emulation]") {
    const Clock clock;
    Masked x;
    SECTION("no algorithm") { fake_lt.refused = {Epilogue::relu_aux_bias}; }
    SECTION("less aligned") { x.g.mask = x.mask.data() + 8; }
    SECTION("forgotten") { fake_lt.forgets_aux = true; }
    SECTION("another layout") {
        using enum FakeLt::Mask;
        fake_lt.mask = GENERATE(big_endian, packed, transposed, zero_is_positive);
    }
    REQUIRE(x.run() == Epilogue::relu_bias);
    fake_lt.no_fused = true;
    cuda::clear_gemm_plans();
    REQUIRE(x.run() == Epilogue::none);
    fake_lt.no_algorithm = true;
    cuda::clear_gemm_plans();
    x.run();
}

TEST_CASE("gemm mask: a square one's transpose is found, too", "[cuda][gemm][emulation]") {
    const Clock clock;
    Masked x(128, 128);
    fake_lt.mask = FakeLt::Mask::transposed;
    REQUIRE(x.run() == Epilogue::relu_bias);
    fake_lt.mask = FakeLt::Mask::right;
    cuda::clear_gemm_plans();
    REQUIRE(x.run() == Epilogue::relu_aux_bias);
}

TEST_CASE("gemm plans: masks and gradients in files", "[cuda][gemm][emulation]") {
    const Clock clock;
    Tuned::times(3, 1, 2);
    Gradient relu(Activation::relu), gelu(Activation::gelu_tanh);
    Gradient relu_alone(Activation::relu), gelu_alone(Activation::gelu_tanh);
    relu_alone.g.bias_grad = gelu_alone.g.bias_grad = nullptr;
    Masked masked, masked_alone;
    masked_alone.g.bias = nullptr;
    relu.run(), gelu.run(), masked.run(), relu_alone.run(), gelu_alone.run(), masked_alone.run();
    const test::Folder folder;
    const std::string path = folder.file("plans");
    REQUIRE(cuda::save_gemm_plans(path) == 6);
    const std::string text = folder.read("plans");
    for (const char* name : {"\"drelu\"", "\"drelu_bgrad\"", "\"dgelu_tanh\"", "\"dgelu_tanh_bgrad\"",
                             "\"relu_aux\"", "\"relu_aux_bias\""})
        REQUIRE(text.find(name) != text.npos);
    cuda::clear_gemm_plans();
    cuda::set_gemm_options({});
    REQUIRE(cuda::load_gemm_plans(path).loaded == 6);
    REQUIRE(cuda::save_gemm_plans(folder.file("again")) == 6);
    REQUIRE(folder.read("again") == text);
    SECTION("used as they are") {
        const int runs = fake_lt.runs;
        REQUIRE(relu.run() == Epilogue::drelu_bgrad);
        REQUIRE(fake_lt.last_algorithm == 1);
        REQUIRE(fake_lt.runs == runs + 3);  // two for the check
        REQUIRE(gelu.run() == Epilogue::dgelu_tanh_bgrad);
        REQUIRE(masked.run() == Epilogue::relu_aux_bias);
        REQUIRE(relu_alone.run() == Epilogue::drelu);
        REQUIRE(gelu_alone.run() == Epilogue::dgelu_tanh);
        REQUIRE(masked_alone.run() == Epilogue::relu_aux);
    }
    SECTION("a layout that is another one now") {
        fake_lt.mask = FakeLt::Mask::transposed;
        REQUIRE(relu.run() == Epilogue::none);
        REQUIRE(masked.run() == Epilogue::relu_bias);
        REQUIRE(gelu.run() == Epilogue::dgelu_tanh_bgrad);
    }
}
