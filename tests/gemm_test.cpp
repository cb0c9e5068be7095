// The GEMM against float64 loops: every instruction set this processor has, types, transpositions, edges,
// epilogues.
#include "gemm_case.h"

#include <array>
#include <cstddef>
#include <random>
#include <vector>

#include "cpu/parallel.h"
#include "cpu/prefetch.h"

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
            // Sums in C and not, a last range that is short, more ranges than are added up one by one.
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
            // Whole panels and not, several blocks, two ranges of k, strips of rows and of k; few rows, so that threads
            // pack columns of their own.
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
