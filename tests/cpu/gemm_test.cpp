// The GEMM against float64 loops: every instruction set of this processor, types, transpositions, edges,
// epilogues.
#include "tests/cpu/gemm_case.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <memory>
#include <random>
#include <vector>

#include "cpu/gemm/five_loops.h"
#include "cpu/gemm/operand.h"
#include "cpu/gemm/prefetch.h"
#include "cpu/parallel.h"

using namespace gemm_case;

TEST_CASE("gemm: sizes around the tile edges, all transpositions", "[gemm]") {
    for (const Variant& v : variants()) {
        INFO(v.name);
        for (const std::int64_t m : {1, 2, 3, 5, 6, 7, 8, 9, 11, 13, 14, 15, 27, 29})
            for (const std::int64_t n : {1, 2, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 65})
                for (const std::int64_t k : {1, 2, 4, 5, 8, 17, 33})
                    for (int transposed = 0; transposed < 4; ++transposed)
                        run({.m = m,
                             .n = n,
                             .k = k,
                             .ta = (transposed & 1) != 0,
                             .tb = (transposed & 2) != 0},
                            *v.kernels);
    }
}

TEST_CASE("gemm: every mix of types", "[gemm]") {
    for (const Variant& v : variants()) {
        INFO(v.name);
        for (const Dtype a : stored)
            for (const Dtype b : stored)
                for (const Dtype c : stored)
                    for (int transposed = 0; transposed < 4; ++transposed)
                        for (const std::int64_t m : {1, 3, 4, 8, 37})
                            for (const std::int64_t n : {1, 3, 41, 70})
                                run({.m = m,
                                     .n = n,
                                     .k = 23,
                                     .ta = (transposed & 1) != 0,
                                     .tb = (transposed & 2) != 0,
                                     .a = a,
                                     .b = b,
                                     .c = c,
                                     .beta = m == 3 ? 0.5f : 0.0f},
                                    *v.kernels);
    }
}

TEST_CASE("gemm: epilogue", "[gemm]") {
    for (const Variant& v : variants()) {
        INFO(v.name);
        for (const Activation activation :
             {Activation::none, Activation::relu, Activation::gelu, Activation::gelu_tanh})
            for (const Dtype c : stored)
                for (const Dtype bias : {float16, bfloat16, float32})
                    for (const float beta : {0.0f, 1.0f, -0.75f})
                        for (const std::int64_t m : {1, 19})
                            for (const std::int64_t n : {3, 21})
                                for (const std::int64_t k : {0, 12})
                                    run({.m = m,
                                         .n = n,
                                         .k = k,
                                         .a = bfloat16,
                                         .b = bfloat16,
                                         .c = c,
                                         .activation = activation,
                                         .bias = bias != float16 || c == float16,
                                         .pre = beta <= 0,
                                         .bias_type = bias,
                                         .alpha = beta < 0 ? 1.5f : 1.0f,
                                         .beta = beta},
                                        *v.kernels);
    }
}

TEST_CASE("gemm: a gradient before an activation", "[gemm]") {
    for (const int threads : {1, 2}) {
        cpu::set_num_threads(threads);
        for (const Variant& v : variants()) {
            INFO(v.name << ", threads " << threads);
            for (const Activation activation : {Activation::relu, Activation::gelu})
                // One block, few rows, few columns, k = 0, several blocks, several ranges of k.
                for (Case t :
                     {Case{.m = 19, .n = 21, .k = 12}, Case{.m = 3, .n = 40, .k = 9},
                      Case{.m = 40, .n = 3, .k = 9}, Case{.m = 9, .n = 5, .k = 0},
                      Case{.m = 263, .n = 301, .k = 20}, Case{.m = 12, .n = 40, .k = 6200, .ta = true}}) {
                    if (v.kernels->tiles || (v.name == "wide tile" && t.m + t.k > 250)) continue;
                    t.activation = activation;
                    t.saved = true;
                    run(t, *v.kernels);
                    t.alpha = 0.5f, t.beta = -0.75f;
                    run(t, *v.kernels);
                }
        }
    }
}

TEST_CASE("gemm: sums of op(A)'s rows", "[gemm]") {
    for (const int threads : {1, 2}) {
        cpu::set_num_threads(threads);
        for (const Variant& v : variants()) {
            if (v.kernels->tiles) continue;
            for (const Dtype type : stored) {
                // Rows in several units of packing, the last panel cut; k in one range and in many; C in
                // cache blocks of rows and columns.
                for (const auto& [m, n, k] : {std::array<std::int64_t, 3>{9, 5, 1},
                                              {37, 20, 7},
                                              {300, 48, 515},
                                              {13, 100, 5003},
                                              {70, 4100, 3073},
                                              {2100, 9, 40},
                                              {4200, 4200, 3}}) {
                    if (v.name == "wide tile" && m * n * k > 1 << 21) continue;
                    if (m * n > 1 << 22 && (type != float32 || threads == 2)) continue;
                    INFO(v.name << ", " << name(type) << ", " << m << " x " << n << " x " << k << ", threads "
                                << threads);
                    Matrix a(k, m, type), b(k, n, type), c(m, n, float32);
                    std::mt19937 random(5);
                    a.fill([&] { return double(random() % 4001) / 2000.0 - 0.9; });
                    b.fill([] { return 0.5; });
                    std::vector<double> sums(std::size_t(m + 1), 100);
                    Gemm g = gemm_of(a, b, c, true);
                    g.a_sums = sums.data();
                    REQUIRE(cpu::packs_rows_of_a(*v.kernels, g));
                    cpu::gemm(g, *v.kernels);
                    double worst = 0;
                    for (std::int64_t i = 0; i < m; ++i) {
                        double want = 100;
                        for (std::int64_t p = 0; p < k; ++p) want += a.at(0, p, i);
                        worst = std::max(worst, std::fabs(sums[std::size_t(i)] - want));
                        worst = std::max(worst, std::fabs(c.at(0, i, n - 1) - (want - 100) / 2) * 1e-2);
                    }
                    CHECK(worst < 4e-8 * double(k + 30));
                    CHECK(sums[std::size_t(m)] == 100);
                }
            }
        }
    }
    cpu::set_num_threads(2);
}

TEST_CASE("gemm: a large result stored past the caches has the same bits", "[gemm]") {
    constexpr std::int64_t m = 1031, n = 1030, ld = 1040, k = 5, line = 16;
    std::vector<float> a(m * k), b(k * n), bias(n);
    std::mt19937 random(7);
    for (std::vector<float>* const x : {&a, &b, &bias})
        for (float& v : *x) v = float(random() % 4001) / 2000.0f - 1;
    for (const int threads : {1, 2}) {
        cpu::set_num_threads(threads);
        for (const Variant& v : variants()) {
            if (v.kernels->tiles) continue;
            INFO(v.name << ", threads " << threads);
            // The results begin on a cache line, or one float after it.
            std::vector<float> found[2], saved(m * ld + 2 * line);
            for (std::size_t i = 0; i < saved.size(); ++i) saved[i] = float(i % 61) / 10.0f - 3;
            for (const std::size_t shift : {0, 1}) {
                std::vector<float> memory(3 * m * ld + 2 * line, -97.5f);
                void* start = memory.data();
                std::size_t room = memory.size() * sizeof(float);
                float* const c = static_cast<float*>(std::align(64, 1, start, room)) + shift;
                Gemm g{.m = m, .n = n, .k = k, .a = a.data(), .lda = k, .b = b.data(), .ldb = n};
                g.c = c, g.ldc = ld;
                g.bias = bias.data(), g.activation = Activation::gelu, g.pre_activation = c + m * ld;
                CHECK(cpu::streams(*v.kernels, g) == (shift == 0 && v.kernels->lanes == line));
                cpu::gemm(g, *v.kernels);
                g.c = c + 2 * m * ld;
                g.bias = nullptr, g.pre_activation = nullptr, g.saved = saved.data();
                cpu::gemm(g, *v.kernels);
                found[shift].assign(c, c + 3 * m * ld);
            }
            const bool same = found[0] == found[1];  // not in CHECK: it would print millions of values
            CHECK(same);
            CHECK(found[0][n] == -97.5f);
        }
    }
    cpu::set_num_threads(2);
}

TEST_CASE("gemm: batches, repeated operands, stacked rows", "[gemm]") {
    for (const Variant& v : variants())
        for (const std::int64_t m : {1, 5, 20})
            for (int shared = 0; shared < 4; ++shared)
                for (int transposed = 0; transposed < 4; ++transposed)
                    run({.m = m,
                         .n = 18,
                         .k = 9,
                         .ta = (transposed & 1) != 0,
                         .tb = (transposed & 2) != 0,
                         .c = bfloat16,
                         .bias = true,
                         .batch = 7,
                         .share_a = (shared & 1) != 0,
                         .share_b = (shared & 2) != 0},
                        *v.kernels);
    std::vector<float> a(6 * 4), b(4 * 5), c(6 * 5), want(6 * 5);  // three stacked [2,4] matrices
    for (std::size_t i = 0; i < a.size(); ++i) a[i] = float(i);
    for (std::size_t i = 0; i < b.size(); ++i) b[i] = float(i % 7);
    Gemm g{.m = 2,
           .n = 5,
           .k = 4,
           .a = a.data(),
           .lda = 4,
           .b = b.data(),
           .ldb = 5,
           .c = c.data(),
           .ldc = 5,
           .batch = 3,
           .stride_a = 8,
           .stride_b = 0,
           .stride_c = 10};
    cpu::gemm(g);
    for (int i = 0; i < 6; ++i)
        for (int j = 0; j < 5; ++j)
            for (int p = 0; p < 4; ++p)
                want[std::size_t(i * 5 + j)] += a[std::size_t(i * 4 + p)] * b[std::size_t(p * 5 + j)];
    CHECK(c == want);
}

TEST_CASE("gemm: a small C from packed rows, in short ranges of k", "[gemm]") {
    for (const int threads : {1, 2}) {
        cpu::set_num_threads(threads);
        for (const Variant& v : variants()) {
            if (v.name == "wide tile" && threads == 2) continue;
            INFO(v.name << ", threads " << threads);
            // With and without beta, a short last range, and more ranges than are added up one by one.
            for (const float beta : {0.0f, 1.0f, 0.5f})
                run({.m = 40, .n = 96, .k = 1030, .ta = true, .beta = beta}, *v.kernels);
            run({.m = 263, .n = 208, .k = 700, .ta = true, .beta = 1}, *v.kernels);
            run({.m = 45, .n = 101, .k = 5001, .ta = true, .tb = true, .bias = true}, *v.kernels);
            run({.m = 24, .n = 128, .k = 5000, .ta = true, .a = bfloat16, .b = bfloat16, .c = bfloat16},
                *v.kernels);
        }
    }
    cpu::set_num_threads(2);
}

TEST_CASE("gemm: regions to prefetch are divided without a rest and spread evenly", "[gemm]") {
    const std::vector<char> memory(64 * 1000);
    const cpu::Prefetch::Region all = cpu::region_of(memory.data(), 640, 100, 130);
    CHECK(all.lines == 3);
    std::int64_t runs = 0;
    for (int part = 0; part < 7; ++part) {
        const cpu::Prefetch::Region region = cpu::part_of(all, part, 7);
        CHECK(region.start == memory.data() + runs * 640);
        runs += region.runs;
    }
    CHECK(runs == 100);
    cpu::Prefetch ahead;
    cpu::add(ahead, all);
    cpu::add(ahead, {});
    CHECK(ahead.count == 1);
    cpu::set_pace(ahead, 300 * 16);
    CHECK(ahead.pace == 1);
    cpu::set_pace(ahead, 100 * 16);
    CHECK(ahead.pace == 3);
    cpu::set_pace(ahead, 1);
    CHECK(ahead.pace == int(cpu::Prefetch::slots));
}

TEST_CASE("gemm: several cache blocks and threads, long k", "[gemm]") {
    for (const int threads : {1, 3}) {
        cpu::set_num_threads(threads);
        for (const Variant& v : variants()) {
            if (v.name == "wide tile" && threads == 3) continue;
            INFO(v.name << ", threads " << threads);
            run({.m = 263, .n = 301, .k = 270, .a = float16, .b = bfloat16, .c = bfloat16, .bias = true},
                *v.kernels);
            run({.m = 133, .n = 530, .k = 401, .ta = true, .beta = 1}, *v.kernels);
            run({.m = 9,
                 .n = 40,
                 .k = 6200,
                 .tb = true,
                 .a = bfloat16,
                 .b = bfloat16,
                 .c = bfloat16,
                 .activation = Activation::relu,
                 .bias = true,
                 .pre = true},
                *v.kernels);
            // Parts of k. The first product has fewer parts than three threads.
            run({.m = 130, .n = 100, .k = 4100, .bias = true}, *v.kernels);
            run({.m = 1, .n = 53, .k = 40000}, *v.kernels);
            run({.m = 3, .n = 70, .k = 9001, .ta = true, .b = float16, .c = float16, .beta = 0.5},
                *v.kernels);
            run({.m = 130, .n = 2, .k = 8192, .tb = true, .alpha = 2}, *v.kernels);
            run({.m = 20,
                 .n = 33,
                 .k = 12289,
                 .ta = true,
                 .tb = true,
                 .a = bfloat16,
                 .b = bfloat16,
                 .c = bfloat16,
                 .activation = Activation::relu,
                 .bias = true,
                 .pre = true},
                *v.kernels);
            run({.m = 4, .n = 1300, .k = 640, .b = float16}, *v.kernels);
            run({.m = 1300, .n = 3, .k = 640, .ta = true, .a = bfloat16, .c = float16}, *v.kernels);
            run({.m = 64,
                 .n = 48,
                 .k = 90,
                 .tb = true,
                 .a = float16,
                 .b = float16,
                 .c = float16,
                 .batch = 24},
                *v.kernels);
        }
    }
    cpu::set_num_threads(2);
}

TEST_CASE("gemm: few rows of more columns than a block", "[gemm]") {
    cpu::set_num_threads(1);
    for (const Variant& v : variants()) {
        INFO(v.name);
        for (const std::int64_t m : {2, 3, 4, 5, 6, 7, 8})
            for (const Dtype type : {float32, bfloat16})
                run({.m = m, .n = 2100, .k = 9, .a = type, .b = type}, *v.kernels);
    }
    cpu::set_num_threads(2);
}

TEST_CASE("gemm: more than one strip of rows and columns", "[gemm]") {
    cpu::set_num_threads(2);
    for (const bool transposed :
         {false, true}) {  // k = 3000 is packed at once, 690 rows or columns at a time
        run({.m = 712, .n = 9, .k = 3000, .ta = transposed, .a = bfloat16},
            cpu::gemm_kernels(cpu::active_isa()));
        run({.m = 9, .n = 1412, .k = 3000, .tb = transposed, .b = bfloat16},
            cpu::gemm_kernels(cpu::active_isa()));
        run({.m = 1040, .n = 10, .k = 3100, .ta = transposed, .c = bfloat16},
            cpu::gemm_kernels(cpu::active_isa()));
    }
}

TEST_CASE("gemm: sums go straight into a float32 result, added to it or not", "[gemm]") {
    for (const int threads : {1, 2}) {
        cpu::set_num_threads(threads);
        for (const Variant& v : variants()) {
            if (v.name == "wide tile" && threads == 2) continue;
            INFO(v.name << ", threads " << threads);
            for (const Dtype type : {float32, bfloat16})
                for (const float beta : {0.0f, 1.0f})
                    for (const std::int64_t n : {400, 411})  // whole vectors or not
                        run({.m = 45, .n = n, .k = 1500, .tb = n == 400, .a = type, .b = type, .beta = beta},
                            *v.kernels);
        }
    }
    cpu::set_num_threads(2);
}

TEST_CASE("gemm: rows that are read in place give the bits of packed ones", "[gemm]") {
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    int compared = 0;
    for (const int threads : {1, 2}) {
        cpu::set_num_threads(threads);
        for (const Variant& v : variants()) {
            if (v.kernels->tile_in_place == nullptr || (v.name == "wide tile" && threads == 2)) continue;
            cpu::GemmKernels packing = *v.kernels;
            packing.tile_in_place = nullptr;
            // Whole and partial panels, several blocks, two ranges of k, cache blocks of rows and of k; few
            // rows, so that threads pack columns of their own.
            for (const std::array<std::int64_t, 3>& sizes :
                 std::vector<std::array<std::int64_t, 3>>{{24, 48, 70},
                                                          {37, 61, 33},
                                                          {263, 101, 270},
                                                          {40, 500, 1500},
                                                          {1415, 9, 3000},
                                                          {50, 33, 6200}})
                for (const bool trans_b : {false, true})
                    for (const float beta : {0.0f, 1.0f}) {
                        const std::int64_t m = sizes[0], n = sizes[1], k = sizes[2];
                        INFO(v.name << ", threads " << threads << ": " << m << " x " << n << " x " << k);
                        const std::int64_t lda = k + 3, ldb = trans_b ? k : n;
                        const auto random_values = [&](std::int64_t count) {
                            std::vector<float> values;
                            while (std::int64_t(values.size()) < count) values.push_back(normal(random));
                            return values;
                        };
                        const std::vector<float> a = random_values(m * lda), b = random_values(k * n),
                                                 bias = random_values(n), start = random_values(m * n);
                        const auto product = [&](const cpu::GemmKernels& kernels) {
                            std::vector<float> c = start;
                            cpu::gemm({.m = m,
                                       .n = n,
                                       .k = k,
                                       .trans_b = trans_b,
                                       .a = a.data(),
                                       .lda = lda,
                                       .b = b.data(),
                                       .ldb = ldb,
                                       .c = c.data(),
                                       .ldc = n,
                                       .bias = trans_b ? bias.data() : nullptr,
                                       .beta = beta},
                                      kernels);
                            return c;
                        };
                        REQUIRE(product(*v.kernels) == product(packing));
                        ++compared;
                    }
        }
    }
    CHECK(compared > 0);
    cpu::set_num_threads(2);
}

TEST_CASE("gemm: columns that are read in place, of few rows", "[gemm]") {
    for (const int threads : {1, 2}) {
        cpu::set_num_threads(threads);
        for (const Variant& v : variants()) {
            if (v.name == "wide tile" && threads == 2) continue;
            INFO(v.name << ", threads " << threads);
            // Whole and partial panels, one range of k and several, more than are added up one by one.
            for (const bool ta : {false, true}) {
                run({.m = 9, .n = 16, .k = 7, .ta = ta}, *v.kernels);
                run({.m = 24, .n = 208, .k = 700, .ta = ta, .beta = 1}, *v.kernels);
                run({.m = 61, .n = 64, .k = 2500, .ta = ta, .c = bfloat16, .bias = true}, *v.kernels);
                run({.m = 17, .n = 512, .k = 1090, .ta = ta, .a = bfloat16, .beta = 0.5f}, *v.kernels);
                run({.m = 10, .n = 400, .k = 2600, .ta = ta}, *v.kernels);
            }
        }
    }
    cpu::set_num_threads(2);
}

TEST_CASE("gemm: a large C of a short k", "[gemm]") {
    for (const int threads : {1, 2}) {
        cpu::set_num_threads(threads);
        for (const Variant& v : variants()) {
            if (v.name == "wide tile" && threads == 2) continue;
            INFO(v.name << ", threads " << threads);
            for (const bool transposed : {false, true})
                run({.m = 515,
                     .n = 512,
                     .k = transposed ? 64 : 3,
                     .ta = transposed,
                     .tb = transposed,
                     .beta = transposed ? 1.0f : 0.0f},
                    *v.kernels);
        }
    }
    cpu::set_num_threads(2);
}

TEST_CASE("gemm: small matrices of 16-bit types", "[gemm]") {
    for (const Variant& v : variants()) {
        INFO(v.name);
        for (const Dtype type : {float16, bfloat16})
            for (const std::int64_t m : {1, 8, 16})
                for (const std::int64_t n : {1, 3, 4, 8, 15, 16})
                    for (const std::int64_t k : {1, 7, 16})
                        for (const bool ta : {false, true})
                            for (const bool tb : {false, true})
                                run({.m = m,
                                     .n = n,
                                     .k = k,
                                     .ta = ta,
                                     .tb = tb,
                                     .a = type,
                                     .b = type,
                                     .c = type},
                                    *v.kernels);
    }
}
