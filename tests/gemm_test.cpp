// The GEMM against float64 loops: every instruction set this processor has, types, transpositions, edges, epilogues.
#include "cpu/gemm.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cpu/isa.h"
#include "cpu/isa_tables.h"
#include "cpu/parallel.h"
#include "gemm_wide_tile.h"
#include "mezzo/error.h"

using namespace mezzo;
using cpu::Gemm;

namespace {

double read(const void* p, Dtype type, std::int64_t i) {
    switch (type) {
        case float16: return static_cast<float>(static_cast<const float16_t*>(p)[i]);
        case bfloat16: return static_cast<float>(static_cast<const bfloat16_t*>(p)[i]);
        case float32: return static_cast<const float*>(p)[i];
        default: return static_cast<const double*>(p)[i];
    }
}

void write(void* p, Dtype type, std::int64_t i, double x) {
    switch (type) {
        case float16: static_cast<float16_t*>(p)[i] = float16_t(static_cast<float>(x)); break;
        case bfloat16: static_cast<bfloat16_t*>(p)[i] = bfloat16_t(static_cast<float>(x)); break;
        case float32: static_cast<float*>(p)[i] = static_cast<float>(x); break;
        default: static_cast<double*>(p)[i] = x;
    }
}

// Half the distance between neighbours, relative: what one rounding to the type may add.
double rounding(Dtype type) {
    return type == float16 ? 0x1p-11 : type == bfloat16 ? 0x1p-8 : type == float32 ? 0x1p-24 : 0x1p-53;
}

// A matrix inside a larger allocation: `ld` beyond the row, NaN everywhere else, guards checked afterwards.
struct Matrix {
    std::int64_t rows, columns, ld, count;
    Dtype type;
    std::vector<char> bytes;
    static constexpr std::int64_t front = 3;
    static constexpr double guard = -97.5;

    Matrix(std::int64_t r, std::int64_t c, Dtype t, std::int64_t batch = 1, std::int64_t extra = 5)
        : rows(r), columns(c), ld(c + extra), count(batch), type(t),
          bytes(static_cast<std::size_t>(2 * front + batch * stride()) * size_of(t)) {
        for (std::int64_t i = 0; i < 2 * front + batch * stride(); ++i) write(bytes.data(), type, i, guard);
    }
    std::int64_t stride() const { return rows * ld + 7; }
    void* data() { return bytes.data() + static_cast<std::size_t>(front) * size_of(type); }
    double at(std::int64_t b, std::int64_t i, std::int64_t j) const {
        return read(bytes.data(), type, front + b * stride() + i * ld + j);
    }
    void set(std::int64_t b, std::int64_t i, std::int64_t j, double x) {
        write(bytes.data(), type, front + b * stride() + i * ld + j, x);
    }
    template <class F> void fill(const F& f) {
        for (std::int64_t b = 0; b < count; ++b)
            for (std::int64_t i = 0; i < rows; ++i)
                for (std::int64_t j = 0; j < columns; ++j) set(b, i, j, f());
    }
    bool guards_intact() const {
        for (std::int64_t at = 0; at < 2 * front + count * stride(); ++at) {
            const std::int64_t local = at - front, inside = local < 0 ? -1 : local % stride();
            const bool element = local >= 0 && local < count * stride() && inside / ld < rows &&
                                 inside % ld < columns && inside < rows * ld;
            if (!element && read(bytes.data(), type, at) != guard) return false;
        }
        return true;
    }
};

double activate(Activation activation, double x) {
    switch (activation) {
        case Activation::relu: return x < 0 ? 0 : x;
        case Activation::gelu: return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
        case Activation::gelu_tanh:
            return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
        default: return x;
    }
}

struct Case {
    std::int64_t m = 1, n = 1, k = 1;
    bool ta = false, tb = false;
    Dtype a = float32, b = float32, c = float32;
    Activation activation = Activation::none;
    bool bias = false, pre = false;
    Dtype bias_type = float32;
    float alpha = 1, beta = 0;
    std::int64_t batch = 1;
    bool share_a = false, share_b = false;
};

std::string text(const Case& t) {
    return std::to_string(t.m) + "x" + std::to_string(t.n) + "x" + std::to_string(t.k) + (t.ta ? " T" : " N") +
           (t.tb ? "T" : "N") + " types " + std::to_string(int(t.a)) + std::to_string(int(t.b)) +
           std::to_string(int(t.c)) + " activation " + std::to_string(int(t.activation)) + " bias " +
           std::to_string(t.bias) + " beta " + std::to_string(t.beta) + " batch " + std::to_string(t.batch);
}

// Runs one case and compares every element with a float64 loop over the stored (already rounded) operands.
// Tolerance: k additions of rounding error u each on the sum of |a b| (the textbook bound, gamma_k), plus one
// rounding to C's type.
void run(const Case& t, const cpu::GemmKernels& kernels) {
    INFO(text(t));
    std::mt19937 random(static_cast<unsigned>(t.m * 73 + t.n * 31 + t.k));
    const auto uniform = [&] { return double(random() % 4001) / 2000.0 - 1.0; };
    Matrix a(t.ta ? t.k : t.m, t.ta ? t.m : t.k, t.a, t.share_a ? 1 : t.batch);
    Matrix b(t.tb ? t.n : t.k, t.tb ? t.k : t.n, t.b, t.share_b ? 1 : t.batch);
    Matrix c(t.m, t.n, t.c, t.batch), pre(t.m, t.n, t.c, t.batch), bias(1, t.n, t.bias_type);
    a.fill(uniform), b.fill(uniform), bias.fill(uniform);
    if (t.beta != 0) c.fill(uniform);
    else c.fill([] { return std::numeric_limits<double>::quiet_NaN(); });
    const Matrix old = c;
    const Gemm g{.m = t.m, .n = t.n, .k = t.k, .trans_a = t.ta, .trans_b = t.tb,
                 .a = a.data(), .a_type = t.a, .lda = a.ld,
                 .b = b.data(), .b_type = t.b, .ldb = b.ld,
                 .c = c.data(), .c_type = t.c, .ldc = c.ld,
                 .bias = t.bias ? bias.data() : nullptr, .bias_type = t.bias_type,
                 .pre_activation = t.pre ? pre.data() : nullptr, .activation = t.activation,
                 .alpha = t.alpha, .beta = t.beta, .batch = t.batch,
                 .stride_a = t.share_a ? 0 : a.stride(), .stride_b = t.share_b ? 0 : b.stride(),
                 .stride_c = c.stride()};
    cpu::gemm(g, kernels);
    const double unit = t.a == float64 ? 0x1p-53 : 0x1p-24, store = rounding(t.c);
    std::string wrong;
    const auto at = [](std::int64_t row, std::int64_t k, std::int64_t p) { return static_cast<std::size_t>(row * k + p); };
    std::vector<double> x(at(t.m, t.k, 0)), y(at(t.n, t.k, 0));
    for (std::int64_t q = 0; q < t.batch && wrong.empty(); ++q) {
        const std::int64_t qa = t.share_a ? 0 : q, qb = t.share_b ? 0 : q;
        for (std::int64_t p = 0; p < t.k; ++p) {
            for (std::int64_t i = 0; i < t.m; ++i) x[at(i, t.k, p)] = t.ta ? a.at(qa, p, i) : a.at(qa, i, p);
            for (std::int64_t j = 0; j < t.n; ++j) y[at(j, t.k, p)] = t.tb ? b.at(qb, j, p) : b.at(qb, p, j);
        }
        for (std::int64_t i = 0; i < t.m && wrong.empty(); ++i)
            for (std::int64_t j = 0; j < t.n && wrong.empty(); ++j) {
                double sum = 0, size = 0;
                for (std::int64_t p = 0; p < t.k; ++p) {
                    const double product = x[at(i, t.k, p)] * y[at(j, t.k, p)];
                    sum += product, size += std::fabs(product);
                }
                sum *= t.alpha, size *= std::fabs(t.alpha);
                if (t.bias) sum += bias.at(0, 0, j), size += std::fabs(bias.at(0, 0, j));
                if (t.beta != 0) sum += t.beta * old.at(q, i, j), size += std::fabs(t.beta * old.at(q, i, j));
                const double error = unit * (double(t.k) + 4) * size + 1e-30, want = activate(t.activation, sum);
                // |gelu'| < 1.13; its own evaluation adds a few units of the result
                const double slack = 1.13 * error + 8 * unit * std::fabs(want) + 1e-30;
                const double half_step = t.c == float16 ? 0x1p-25 : 0.0;  // subnormal spacing
                const double got = c.at(q, i, j);
                if (!(std::fabs(got - want) <= slack + store * (std::fabs(want) + slack) + half_step))
                    wrong = "C[" + std::to_string(i) + "," + std::to_string(j) + "] = " + std::to_string(got) +
                            ", want " + std::to_string(want);
                if (t.pre && !(std::fabs(pre.at(q, i, j) - sum) <= error + store * (std::fabs(sum) + error) + half_step))
                    wrong = "pre-activation " + std::to_string(pre.at(q, i, j)) + ", want " + std::to_string(sum);
            }
    }
    CHECK(wrong == "");
    CHECK(c.guards_intact());
    CHECK(pre.guards_intact());
}

struct Variant {
    std::string name;
    const cpu::GemmKernels* kernels;
};

// The instruction sets this processor has, and the AVX-512 tile shape lowered to what it has.
std::vector<Variant> variants() {
    std::vector<Variant> list{{"portable", &cpu::gemm_portable}, {"wide tile", &wide_tile_kernels()}};
    if (cpu::best_isa() >= cpu::Isa::avx2 && cpu::gemm_avx2.mr) list.push_back({"avx2", &cpu::gemm_avx2});
    if (cpu::best_isa() >= cpu::Isa::avx512 && cpu::gemm_avx512.mr) list.push_back({"avx512", &cpu::gemm_avx512});
    return list;
}

constexpr Dtype stored[] = {float16, bfloat16, float32};

}  // namespace

TEST_CASE("gemm: sizes around the tile edges, all transpositions", "[gemm]") {
    for (const Variant& v : variants()) {
        INFO(v.name);
        for (const std::int64_t m : {1, 2, 3, 5, 6, 7, 8, 9, 11, 13, 14, 15, 27, 29})
            for (const std::int64_t n : {1, 2, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 65})
                for (const std::int64_t k : {1, 2, 4, 5, 8, 17, 33})
                    for (int transposed = 0; transposed < 4; ++transposed)
                        run({.m = m, .n = n, .k = k, .ta = (transposed & 1) != 0, .tb = (transposed & 2) != 0}, *v.kernels);
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
                                run({.m = m, .n = n, .k = 23, .ta = (transposed & 1) != 0, .tb = (transposed & 2) != 0,
                                     .a = a, .b = b, .c = c, .beta = m == 3 ? 0.5f : 0.0f}, *v.kernels);
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
                                    run({.m = m, .n = n, .k = k, .a = bfloat16, .b = bfloat16, .c = c,
                                         .activation = activation, .bias = bias != float16 || c == float16,
                                         .pre = beta <= 0, .bias_type = bias, .alpha = beta < 0 ? 1.5f : 1.0f,
                                         .beta = beta}, *v.kernels);
    }
}

TEST_CASE("gemm: batches, repeated operands, stacked rows", "[gemm]") {
    for (const Variant& v : variants())
        for (const std::int64_t m : {1, 5, 20})
            for (int shared = 0; shared < 4; ++shared)
                for (int transposed = 0; transposed < 4; ++transposed)
                    run({.m = m, .n = 18, .k = 9, .ta = (transposed & 1) != 0, .tb = (transposed & 2) != 0, .c = bfloat16,
                         .bias = true, .batch = 7, .share_a = (shared & 1) != 0, .share_b = (shared & 2) != 0}, *v.kernels);
    std::vector<float> a(6 * 4), b(4 * 5), c(6 * 5), want(6 * 5);  // three stacked [2,4] matrices
    for (std::size_t i = 0; i < a.size(); ++i) a[i] = float(i);
    for (std::size_t i = 0; i < b.size(); ++i) b[i] = float(i % 7);
    Gemm g{.m = 2, .n = 5, .k = 4, .a = a.data(), .lda = 4, .b = b.data(), .ldb = 5, .c = c.data(), .ldc = 5,
           .batch = 3, .stride_a = 8, .stride_b = 0, .stride_c = 10};
    cpu::gemm(g);
    for (int i = 0; i < 6; ++i)
        for (int j = 0; j < 5; ++j)
            for (int p = 0; p < 4; ++p) want[std::size_t(i * 5 + j)] += a[std::size_t(i * 4 + p)] * b[std::size_t(p * 5 + j)];
    CHECK(c == want);
}

TEST_CASE("gemm: several cache blocks and threads, long k", "[gemm]") {
    for (const int threads : {1, 3}) {
        cpu::set_num_threads(threads);
        for (const Variant& v : variants()) {
            if (v.name == "wide tile" && threads == 3) continue;
            INFO(v.name << ", threads " << threads);
            run({.m = 263, .n = 301, .k = 270, .a = float16, .b = bfloat16, .c = bfloat16, .bias = true}, *v.kernels);
            run({.m = 133, .n = 530, .k = 401, .ta = true, .beta = 1}, *v.kernels);
            run({.m = 9, .n = 40, .k = 6200, .tb = true, .a = bfloat16, .b = bfloat16, .c = bfloat16,
                 .activation = Activation::relu, .bias = true, .pre = true}, *v.kernels);
            run({.m = 4, .n = 1300, .k = 640, .b = float16}, *v.kernels);
            run({.m = 1300, .n = 3, .k = 640, .ta = true, .a = bfloat16, .c = float16}, *v.kernels);
            run({.m = 64, .n = 48, .k = 90, .tb = true, .a = float16, .b = float16, .c = float16, .batch = 24}, *v.kernels);
        }
    }
    cpu::set_num_threads(2);
}

TEST_CASE("gemm: more than one strip of rows and columns", "[gemm]") {
    cpu::set_num_threads(2);
    for (const bool transposed : {false, true}) {  // k = 3000 is packed at once, 690 rows or columns at a time
        run({.m = 712, .n = 9, .k = 3000, .ta = transposed, .a = bfloat16}, cpu::active_gemm_kernels());
        run({.m = 9, .n = 1412, .k = 3000, .tb = transposed, .b = bfloat16}, cpu::active_gemm_kernels());
        run({.m = 1040, .n = 10, .k = 3100, .ta = transposed, .c = bfloat16}, cpu::active_gemm_kernels());
    }
}

TEST_CASE("gemm: 16-bit products and integer sums are exact", "[gemm]") {
    for (const Variant& v : variants())
        for (const Dtype type : {float16, bfloat16})
            for (const std::int64_t m : {2, 16}) {
                const std::int64_t k = 700, n = 24;  // 700 * 127^2 < 2^24
                Matrix a(m, k, type), b(n, k, type), c(m, n, float32);
                std::mt19937 random(5);
                const auto integer = [&] { return double(random() % 255) - 127.0; };
                a.fill(integer), b.fill(integer);
                cpu::gemm({.m = m, .n = n, .k = k, .trans_b = true, .a = a.data(), .a_type = type, .lda = a.ld,
                           .b = b.data(), .b_type = type, .ldb = b.ld, .c = c.data(), .ldc = c.ld}, *v.kernels);
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

TEST_CASE("gemm: a 16-bit result is rounded once, also over many ranges of k", "[gemm]") {
    for (const Variant& v : variants()) {
        // 1 + 5000 * 2^-12: each term alone vanishes beside 1 in bfloat16 (and in a sum rounded between panels)
        const std::int64_t k = 5001, m = 9, n = 9;
        Matrix a(m, k, bfloat16), b(k, n, bfloat16), c(m, n, bfloat16);
        a.fill([] { return 0x1p-12; }), b.fill([] { return 1.0; });
        for (std::int64_t i = 0; i < m; ++i) a.set(0, i, 0, 1.0);
        cpu::gemm({.m = m, .n = n, .k = k, .a = a.data(), .a_type = bfloat16, .lda = a.ld, .b = b.data(),
                   .b_type = bfloat16, .ldb = b.ld, .c = c.data(), .c_type = bfloat16, .ldc = c.ld}, *v.kernels);
        CHECK(c.at(0, 4, 4) == static_cast<float>(bfloat16_t(1.0f + 5000 * 0x1p-12f)));
        CHECK(c.at(0, 8, 8) == c.at(0, 0, 0));
    }
}

TEST_CASE("gemm: NaN and infinity reach exactly their row or column", "[gemm]") {
    const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
    for (const Variant& v : variants())
        for (const Dtype type : stored)
            for (const std::int64_t m : {3, 9})
                for (const std::int64_t n : {3, 19}) {
                    Matrix a(m, 7, type), b(7, n, type), c(m, n, type);
                    a.fill([] { return 1.0; }), b.fill([] { return 2.0; });
                    a.set(0, 1, 3, nan), b.set(0, 6, n - 1, inf);
                    cpu::gemm({.m = m, .n = n, .k = 7, .a = a.data(), .a_type = type, .lda = a.ld, .b = b.data(),
                               .b_type = type, .ldb = b.ld, .c = c.data(), .c_type = type, .ldc = c.ld,
                               .activation = Activation::relu}, *v.kernels);
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
            cpu::gemm({.m = 1, .n = n, .k = 0, .c = y.data(), .ldc = n, .activation = activation, .beta = 1}, *v.kernels);
            double worst = 0;
            for (std::size_t i = 0; i < x.size(); ++i) {
                const double u = std::sqrt(2 / M_PI) * (x[i] + 0.044715 * std::pow(double(x[i]), 3));
                const double want = activation == Activation::gelu ? activate(activation, x[i])
                                                                    : x[i] / (1 + std::exp(-2 * u));
                // Relative, with what an exponent of float precision allows in gelu_tanh's far tail; gelu is
                // allowed 2^-26 |x| in its left tail, where 1 + erf of float precision would err by more.
                double scale = std::fabs(want);
                if (activation == Activation::gelu_tanh) scale *= 1 + 0.6 * double(x[i]) * x[i];
                else if (x[i] < -2) scale += 0x1p-4 * std::fabs(double(x[i])) / 2;
                worst = std::max(worst, std::fabs(y[i] - want) / (scale + 1e-37));
            }
            INFO(v.name << ", activation " << int(activation));
            CHECK(worst < 6 * 0x1p-23);
            float special[4] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 0, 100};
            cpu::gemm({.m = 1, .n = 4, .k = 0, .c = special, .ldc = 4, .activation = activation, .beta = 1}, *v.kernels);
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
                    run({.m = m, .n = n, .k = k, .ta = (transposed & 1) != 0, .tb = (transposed & 2) != 0, .a = float64,
                         .b = float64, .c = float64, .activation = k == 1 ? Activation::gelu : Activation::relu,
                         .bias = true, .pre = true, .bias_type = float64, .alpha = 0.5f, .beta = k == 1 ? 2.0f : 0.0f,
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
                    cpu::gemm({.m = 150, .n = 150, .k = 150, .a = a.data(), .lda = 150, .b = b.data(), .ldb = 150,
                               .c = result.data(), .ldc = 150});
            });
        for (std::thread& caller : callers) caller.join();
        for (const auto& result : results) CHECK(result == std::vector<float>(150 * 150, 225.0f));
    }
    if (cpu::best_isa() != cpu::Isa::avx512) CHECK_THROWS_AS(cpu::force_isa(cpu::Isa::avx512), Error);
    CHECK(cpu::active_isa() == cpu::best_isa());
}
