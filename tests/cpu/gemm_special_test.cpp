// Properties of the GEMM that a tolerance cannot show: exactness, single rounding, NaN and infinity,
// activations, errors, several callers.
#include <cstddef>
#include <thread>

#include "mezzo/error.h"
#include "tests/cpu/gemm_case.h"

using namespace gemm_case;

TEST_CASE("gemm: 16-bit products and integer sums are exact", "[gemm]") {
    for (const Variant& v : variants())
        for (const Dtype type : {float16, bfloat16})
            for (const std::int64_t m : {2, 16}) {
                const std::int64_t k = 700, n = 24;  // 700 * 127^2 < 2^24
                Matrix a(m, k, type), b(n, k, type), c(m, n, float32);
                std::mt19937 random(5);
                const auto integer = [&] { return double(random() % 255) - 127.0; };
                a.fill(integer), b.fill(integer);
                cpu::gemm(gemm_of(a, b, c, false, true), *v.kernels);
                bool exact = true;
                for (std::int64_t i = 0; i < m; ++i)
                    for (std::int64_t j = 0; j < n; ++j) {
                        double sum = 0;
                        for (std::int64_t p = 0; p < k; ++p) sum += a.at(0, i, p) * b.at(0, j, p);
                        exact = exact && c.at(0, i, j) == sum;
                    }
                CHECK(exact);
            }
}

TEST_CASE("gemm: packed rows are reused only where they are still the right ones", "[gemm]") {
    struct Size {
        std::int64_t m, n, k;
    };
    // several cache blocks of rows and columns; several ranges of k for several blocks of columns
    for (const Size size : {Size{712, 712, 3000}, Size{10, 1040, 3100}}) {
        std::vector<float> a(static_cast<std::size_t>(size.m * size.k));
        const std::vector<float> b(static_cast<std::size_t>(size.k * size.n), 1.0f);
        std::vector<float> c(static_cast<std::size_t>(size.m * size.n));
        for (std::int64_t i = 0; i < size.m; ++i)
            for (std::int64_t p = 0; p < size.k; ++p)
                a[static_cast<std::size_t>(i * size.k + p)] = static_cast<float>(i % 50 + (p < 2048 ? 1 : 0));
        cpu::gemm({.m = size.m,
                   .n = size.n,
                   .k = size.k,
                   .a = a.data(),
                   .lda = size.k,
                   .b = b.data(),
                   .ldb = size.n,
                   .c = c.data(),
                   .ldc = size.n});
        int wrong = 0;
        for (std::int64_t i = 0; i < size.m; ++i)
            for (std::int64_t j = 0; j < size.n; ++j)
                wrong += c[static_cast<std::size_t>(i * size.n + j)] !=
                         static_cast<float>(size.k * (i % 50) + 2048);
        CHECK(wrong == 0);
    }
}

TEST_CASE("gemm: a 16-bit result is rounded once, also over many ranges of k", "[gemm]") {
    for (const Variant& v : variants()) {
        // 1 + 5000 * 2^-12: each term alone is lost next to 1 in bfloat16 (and in a sum rounded between
        // panels)
        const std::int64_t k = 5001, m = 9, n = 9;
        Matrix a(m, k, bfloat16), b(k, n, bfloat16), c(m, n, bfloat16);
        a.fill([] { return 0x1p-12; }), b.fill([] { return 1.0; });
        for (std::int64_t i = 0; i < m; ++i) a.set(0, i, 0, 1.0);
        cpu::gemm(gemm_of(a, b, c), *v.kernels);
        CHECK(c.at(0, 4, 4) == static_cast<float>(bfloat16_t(1.0f + 5000 * 0x1p-12f)));
        CHECK(c.at(0, 8, 8) == c.at(0, 0, 0));
    }
}

TEST_CASE("gemm: NaN and infinity reach exactly their row or column", "[gemm]") {
    const double inf = std::numeric_limits<double>::infinity(),
                 nan = std::numeric_limits<double>::quiet_NaN();
    for (const Variant& v : variants())
        for (const Dtype type : stored)
            for (const std::int64_t m : {3, 9})
                for (const std::int64_t n : {3, 19}) {
                    Matrix a(m, 7, type), b(7, n, type), c(m, n, type);
                    a.fill([] { return 1.0; }), b.fill([] { return 2.0; });
                    a.set(0, 1, 3, nan), b.set(0, 6, n - 1, inf);
                    Gemm g = gemm_of(a, b, c);
                    g.activation = Activation::relu;
                    cpu::gemm(g, *v.kernels);
                    bool good = true;
                    for (std::int64_t i = 0; i < m; ++i)
                        for (std::int64_t j = 0; j < n; ++j) {
                            const double x = c.at(0, i, j);
                            good = good && (i == 1 ? std::isnan(x) : j == n - 1 ? x == inf : x == 14.0);
                        }
                    CHECK(good);
                }
}

TEST_CASE("gemm: activations are accurate over the whole range", "[gemm]") {
    // k = 0 and beta = 1 applies the activation to C alone.
    for (const Variant& v : variants())
        for (const Activation activation : {Activation::gelu, Activation::gelu_tanh}) {
            std::vector<float> x, y;
            for (double d = -9; d < 9; d += 0.00137) x.push_back(static_cast<float>(d));
            y = x;
            const auto n = static_cast<std::int64_t>(x.size());
            cpu::gemm({.m = 1, .n = n, .k = 0, .c = y.data(), .ldc = n, .activation = activation, .beta = 1},
                      *v.kernels);
            double worst = 0;
            for (std::size_t i = 0; i < x.size(); ++i) {
                const double u = std::sqrt(2 / M_PI) * (x[i] + 0.044715 * std::pow(double(x[i]), 3));
                const double want = activation == Activation::gelu ? activate(activation, x[i])
                                                                   : x[i] / (1 + std::exp(-2 * u));
                // The bound is relative, with the error of a float exponent in gelu_tanh's far tail; gelu may
                // err by 2^-26 |x| in its left tail, where 1 + erf of float precision would err by more.
                double scale = std::fabs(want);
                if (activation == Activation::gelu_tanh)
                    scale *= 1 + 0.6 * double(x[i]) * x[i];
                else if (x[i] < -2)
                    scale += 0x1p-4 * std::fabs(double(x[i])) / 2;
                worst = std::max(worst, std::fabs(y[i] - want) / (scale + 1e-37));
            }
            INFO(v.name << ", activation " << int(activation));
            CHECK(worst < 6 * 0x1p-23);
            float special[4] = {std::numeric_limits<float>::quiet_NaN(),
                                std::numeric_limits<float>::infinity(), 0, 100};
            cpu::gemm({.m = 1, .n = 4, .k = 0, .c = special, .ldc = 4, .activation = activation, .beta = 1},
                      *v.kernels);
            CHECK(std::isnan(special[0]));
            CHECK(special[1] == std::numeric_limits<float>::infinity());
            CHECK(special[2] == 0.0f);
            CHECK(special[3] == 100.0f);
        }
}

TEST_CASE("gemm: float64", "[gemm]") {
    for (const std::int64_t m : {1, 7, 45})
        for (const std::int64_t n : {1, 140})
            for (const std::int64_t k : {0, 1, 300})
                for (int transposed = 0; transposed < 4; ++transposed)
                    run({.m = m,
                         .n = n,
                         .k = k,
                         .ta = (transposed & 1) != 0,
                         .tb = (transposed & 2) != 0,
                         .a = float64,
                         .b = float64,
                         .c = float64,
                         .activation = k == 1 ? Activation::gelu : Activation::relu,
                         .bias = true,
                         .pre = true,
                         .bias_type = float64,
                         .alpha = 0.5f,
                         .beta = k == 1 ? 2.0f : 0.0f,
                         .batch = 2},
                        cpu::gemm_portable);
}

TEST_CASE("gemm: nothing to do, and bad arguments", "[gemm]") {
    float c[4] = {1, 2, 3, 4};
    const float a[4] = {1, 1, 1, 1};
    cpu::gemm({.m = 0, .n = 2, .k = 2, .c = c, .ldc = 2});
    cpu::gemm({.m = 2, .n = 0, .k = 2, .c = c, .ldc = 2});
    cpu::gemm({.m = 2, .n = 2, .k = 2, .c = c, .ldc = 2, .batch = 0});
    CHECK(c[0] == 1);
    CHECK(c[3] == 4);
    cpu::gemm({.m = 2, .n = 2, .k = 0, .c = c, .ldc = 2});
    CHECK(c[3] == 0);
    const Gemm good{.m = 2, .n = 2, .k = 2, .a = a, .lda = 2, .b = a, .ldb = 2, .c = c, .ldc = 2};
    Gemm g = good;
    g.lda = 1;
    CHECK_THROWS_WITH(cpu::gemm(g), Catch::Contains("lda"));
    g = good, g.c_type = float64;
    CHECK_THROWS_AS(cpu::gemm(g), Error);
    g = good, g.a_type = int32;
    CHECK_THROWS_AS(cpu::gemm(g), Error);
    g = good, g.k = -1;
    CHECK_THROWS_AS(cpu::gemm(g), Error);
    g = good, g.batch = 2;
    CHECK_THROWS_AS(cpu::gemm(g), Error);
    CHECK_NOTHROW(cpu::gemm(good));
    CHECK(c[0] == 2);
}

TEST_CASE("gemm: concurrent callers and forced instruction sets", "[gemm]") {
    for (const cpu::Isa isa : {cpu::Isa::portable, cpu::best_isa()}) {
        cpu::force_isa(isa);
        CHECK(cpu::active_isa() == isa);
        std::vector<std::vector<float>> results(3, std::vector<float>(150 * 150));
        const std::vector<float> a(150 * 150, 0.5f), b(150 * 150, 3.0f);
        std::vector<std::thread> callers;
        for (auto& result : results)
            callers.emplace_back([&] {
                for (int i = 0; i < 5; ++i)
                    cpu::gemm({.m = 150,
                               .n = 150,
                               .k = 150,
                               .a = a.data(),
                               .lda = 150,
                               .b = b.data(),
                               .ldb = 150,
                               .c = result.data(),
                               .ldc = 150});
            });
        for (std::thread& caller : callers) caller.join();
        for (const auto& result : results) CHECK(result == std::vector<float>(150 * 150, 225.0f));
    }
    for (const cpu::Isa isa : cpu::all_isas)
        if (cpu::best_isa() < isa) CHECK_THROWS_AS(cpu::force_isa(isa), Error);
    CHECK(cpu::isa_is_forced());
    cpu::release_isa();
}
