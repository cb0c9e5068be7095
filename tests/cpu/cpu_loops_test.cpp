// The inner loops of every instruction set that this machine can run, against long double references.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "core/philox.h"
#include "cpu/elementwise/convert.h"
#include "cpu/elementwise/loops.h"
#include "cpu/isa/isa.h"

using namespace mezzo;
using namespace mezzo::cpu;

namespace {

using Real = long double;
constexpr float inf = std::numeric_limits<float>::infinity();
const float nan_value = std::numeric_limits<float>::quiet_NaN();

struct Set {
    const char* name;
    const Loops* loops;
};
std::vector<Set> sets() {
    std::vector<Set> all;
    for (const Isa isa : {Isa::portable, Isa::avx2, Isa::avx512})
        if (isa <= best_isa()) all.push_back({name(isa), &loops_of(isa)});
    return all;
}

// Distance in ulps of `expected` as float; tiny results count in units of the
// smallest subnormal.
double ulps(float got, Real expected) {
    if (std::isnan(expected)) return std::isnan(got) ? 0 : 1e9;
    const float rounded = float(expected);
    if (std::isinf(rounded) || std::isinf(got)) return rounded == got ? 0 : 1e9;
    int exponent = 0;
    std::frexp(rounded, &exponent);
    const Real unit = std::ldexp(Real(1), std::max(exponent, -125) - 24);
    return double(std::fabs(Real(got) - expected) / unit);
}

std::vector<float> arguments(float low, float high) {
    std::vector<float> x = {0.0f,       -0.0f,     inf,    -inf,    nan_value, 1.0f,     -1.0f,     0x1p-149f,
                            -0x1p-149f, 0x1p-126f, 3e-39f, 1e-10f,  -1e-10f,   65504.0f, -65504.0f, 3e38f,
                            -3e38f,     88.8f,     -88.8f, -103.9f, 0.5f,      -0.5f,    2.0f,      1e9f};
    std::mt19937 bits(7);
    std::uniform_real_distribution<float> uniform(low, high);
    for (int i = 0; i < 20000; ++i) x.push_back(uniform(bits));
    for (int i = 0; i < 5000; ++i) x.push_back(std::ldexp(uniform(bits), int(bits() % 60) - 40));
    return x;
}

Real phi(Real x) { return std::exp(-x * x / 2) / std::sqrt(2 * std::acos(Real(-1))); }
Real cdf(Real x) { return std::erfc(-x / std::sqrt(Real(2))) / 2; }
Real logistic(Real x) { return 1 / (1 + std::exp(-x)); }

struct UnaryCase {
    UnaryOp op;
    Real (*reference)(Real);
    double max_ulps;
    float low, high;
    double absolute = 0;  // an error below this is fine too
};

const UnaryCase unary_cases[] = {
    {UnaryOp::neg, [](Real x) { return -x; }, 0, -10, 10},
    {UnaryOp::abs, [](Real x) { return std::fabs(x); }, 0, -10, 10},
    {UnaryOp::sign, [](Real x) { return x > 0   ? Real(1)
                                        : x < 0 ? Real(-1)
                                                : x; }, 0, -10, 10},
    {UnaryOp::square, [](Real x) { return x * x; }, 0.5, -10, 10},
    {UnaryOp::exp, [](Real x) { return std::exp(x); }, 2, -104, 89},
    {UnaryOp::expm1, [](Real x) { return std::expm1(x); }, 3, -20, 89},
    {UnaryOp::log, [](Real x) { return std::log(x); }, 2, 0, 10},
    {UnaryOp::log1p, [](Real x) { return std::log1p(x); }, 3, -1, 10},
    {UnaryOp::sqrt, [](Real x) { return std::sqrt(x); }, 0.5, 0, 100},
    {UnaryOp::rsqrt, [](Real x) { return x == 0 && std::signbit(x) ? Real(-inf) : 1 / std::sqrt(x); }, 1.5, 0,
     100},
    {UnaryOp::reciprocal, [](Real x) { return 1 / x; }, 0.5, -10, 10},
    {UnaryOp::sin, [](Real x) { return std::sin(x); }, 2, -100, 100},
    {UnaryOp::cos, [](Real x) { return std::cos(x); }, 2, -100, 100},
    {UnaryOp::erf, [](Real x) { return std::erf(x); }, 2, -5, 5},
    {UnaryOp::tanh, [](Real x) { return std::tanh(x); }, 2, -10, 10},
    {UnaryOp::sigmoid, [](Real x) { return logistic(x); }, 3, -100, 100},
    {UnaryOp::relu, [](Real x) { return x < 0 ? Real(0) : x; }, 0, -10, 10},
    {UnaryOp::gelu, [](Real x) { return x * cdf(x); }, 4, -5, 5, 1.2e-8},
    {UnaryOp::gelu_tanh,
     [](Real x) {
         return x * logistic(2 * std::sqrt(2 / std::acos(Real(-1))) * (x + Real(0.044715) * x * x * x));
     },
     8, -5, 5, 1e-7},
    {UnaryOp::silu, [](Real x) { return x * logistic(x); }, 4, -80, 80, 1e-40},
    {UnaryOp::softplus,
     [](Real x) { return std::fmax(x, 0) + std::log1p(std::exp(-std::fabs(x))) + (x != x ? x : 0); }, 4, -80,
     80},
};

// Whether a product with zero makes the value undefined: only x phi(x) and the like at -infinity.
bool undefined(UnaryOp op, float x) {
    return x == -inf && (op == UnaryOp::gelu || op == UnaryOp::gelu_tanh || op == UnaryOp::silu);
}

}  // namespace

TEST_CASE("unary loops match long double references on every instruction set", "[cpu_loops]") {
    for (const Set& set : sets())
        for (const UnaryCase& c : unary_cases) {
            const std::vector<float> x = arguments(c.low, c.high);
            std::vector<float> y(x.size());
            set.loops->unary[int(c.op)][int(Compute::f32)](y.data(), x.data(), std::int64_t(x.size()), 0, 0);
            double worst = 0;
            float where = 0;
            for (std::size_t i = 0; i < x.size(); ++i) {
                if (undefined(c.op, x[i])) continue;
                const Real expected = c.reference(Real(x[i]));
                if (std::fabs(Real(y[i]) - expected) <= c.absolute) continue;
                const double error = ulps(y[i], expected);
                if (error > worst) worst = error, where = x[i];
            }
            INFO(set.name << " op " << int(c.op) << " at x = " << where);
            CHECK(worst <= c.max_ulps);
        }
}

TEST_CASE("unary loops of float64 and in place", "[cpu_loops]") {
    for (const Set& set : sets())
        for (const UnaryCase& c : unary_cases) {
            std::vector<float> arguments32 = arguments(c.low, c.high);
            std::vector<double> x(arguments32.begin(), arguments32.end()), y(x.size());
            set.loops->unary[int(c.op)][int(Compute::f64)](y.data(), x.data(), std::int64_t(x.size()), 0, 0);
            std::size_t wrong = 0;
            for (std::size_t i = 0; i < x.size(); ++i) {
                if (undefined(c.op, arguments32[i])) continue;
                const Real expected = c.reference(Real(x[i]));
                const bool same = double(expected) == y[i] || (std::isnan(expected) && std::isnan(y[i]));
                // x Phi(x): an error of the argument grows with x^2 in the tails.
                const Real bound =
                    1e-14L * std::fabs(expected) * (1 + std::fmin(Real(x[i]) * Real(x[i]), Real(1e4)));
                wrong += !same && !(std::fabs(Real(y[i]) - expected) <= bound + 1e-300L);
            }
            INFO(set.name << " op " << int(c.op));
            CHECK(wrong == 0);
            std::vector<float> expected32(arguments32.size());
            const UnaryLoop loop = set.loops->unary[int(c.op)][int(Compute::f32)];
            const auto n = std::int64_t(arguments32.size());
            loop(expected32.data(), arguments32.data(), n, 0, 0);
            loop(arguments32.data(), arguments32.data(), n, 0, 0);
            CHECK(std::memcmp(expected32.data(), arguments32.data(), arguments32.size() * sizeof(float)) ==
                  0);
        }
}

TEST_CASE("pow matches long double and C's special cases", "[cpu_loops]") {
    const float special[] = {0.0f, -0.0f, 1.0f, -1.0f, inf,       -inf,  nan_value, 0.5f,        -0.5f,
                             2.0f, -2.0f, 3.0f, -3.0f, 0x1p-149f, 3e38f, -3e38f,    16777217.0f, 33554432.0f};
    std::vector<float> x, y;
    for (const float a : special)
        for (const float b : special) x.push_back(a), y.push_back(b);
    std::mt19937 bits(3);
    std::uniform_real_distribution<float> base(0, 20), exponent(-30, 30);
    for (int i = 0; i < 20000; ++i) x.push_back(base(bits)), y.push_back(exponent(bits));
    std::vector<float> z(x.size());
    for (const Set& set : sets()) {
        set.loops->binary[int(BinaryOp::pow)][int(Compute::f32)](z.data(), x.data(), y.data(),
                                                                 std::int64_t(x.size()), Single::none);
        for (std::size_t i = 0; i < x.size(); ++i) {
            const double error = ulps(z[i], std::pow(Real(x[i]), Real(y[i])));
            INFO(set.name << " pow(" << x[i] << ", " << y[i] << ") = " << z[i]);
            if (error > 0.6) CHECK(error <= 0.6);
        }
        set.loops->unary[int(UnaryOp::pow_scalar)][int(Compute::f32)](z.data(), x.data(),
                                                                      std::int64_t(x.size()), 2, 0);
        CHECK(ulps(z[x.size() - 1], Real(x.back()) * Real(x.back())) <= 0.6);
    }
}

TEST_CASE("binary and comparison loops, with single operands, integers and NaN", "[cpu_loops]") {
    const std::vector<float> a = {1, -2, 3.5f, nan_value, 0, inf, -0.0f, 7, 8},
                             b = {1, 4, nan_value, 2, -0.0f, -inf, 1, 7, -8};
    const auto n = std::int64_t(a.size());
    for (const Set& set : sets())
        for (const Single single : {Single::none, Single::a, Single::b}) {
            const auto at_a = [&](std::size_t i) { return a[single == Single::a ? 0 : i]; };
            const auto at_b = [&](std::size_t i) { return b[single == Single::b ? 0 : i]; };
            std::vector<float> y(a.size());
            const auto run = [&](BinaryOp op, const auto& reference) {
                set.loops->binary[int(op)][int(Compute::f32)](y.data(), a.data(), b.data(), n, single);
                for (std::size_t i = 0; i < a.size(); ++i) {
                    const float expected = reference(at_a(i), at_b(i));
                    INFO(set.name << " op " << int(op) << " " << at_a(i) << " " << at_b(i) << " gives "
                                  << y[i]);
                    CHECK((std::isnan(expected) ? std::isnan(y[i]) : y[i] == expected));
                }
            };
            run(BinaryOp::add, [](float p, float q) { return p + q; });
            run(BinaryOp::sub, [](float p, float q) { return p - q; });
            run(BinaryOp::mul, [](float p, float q) { return p * q; });
            run(BinaryOp::div, [](float p, float q) { return p / q; });
            run(BinaryOp::maximum,
                [](float p, float q) { return p != p || q != q ? p + q : std::fmax(p, q); });
            run(BinaryOp::minimum,
                [](float p, float q) { return p != p || q != q ? p + q : std::fmin(p, q); });
            run(BinaryOp::relu_grad, [](float g, float y_) { return y_ <= 0 ? 0.0f : g; });
            const auto compare = [&](CompareOp op, const auto& reference) {
                bool result[9];
                set.loops->compare[int(op)][int(Compute::f32)](result, a.data(), b.data(), n, single);
                for (std::size_t i = 0; i < a.size(); ++i) CHECK(result[i] == reference(at_a(i), at_b(i)));
            };
            compare(CompareOp::eq, [](float p, float q) { return p == q; });
            compare(CompareOp::ne, [](float p, float q) { return p != q; });
            compare(CompareOp::lt, [](float p, float q) { return p < q; });
            compare(CompareOp::le, [](float p, float q) { return p <= q; });
            compare(CompareOp::gt, [](float p, float q) { return p > q; });
            compare(CompareOp::ge, [](float p, float q) { return p >= q; });
            compare(CompareOp::logical_and, [](float p, float q) { return p != 0 && q != 0; });
            compare(CompareOp::logical_or, [](float p, float q) { return p != 0 || q != 0; });
        }
    const std::int64_t big[] = {INT64_MAX, INT64_MIN, (std::int64_t(1) << 53) + 1, -5}, one[] = {1, 1, 1, 1};
    std::int64_t z[4];
    for (const Set& set : sets()) {
        set.loops->binary[int(BinaryOp::add)][int(Compute::i64)](z, big, one, 4, Single::none);
        CHECK((z[0] == INT64_MIN && z[1] == INT64_MIN + 1 && z[2] == (std::int64_t(1) << 53) + 2 &&
               z[3] == -4));
        set.loops->unary[int(UnaryOp::clamp)][int(Compute::i64)](z, big, 4, -double(inf), 3);
        CHECK((z[0] == 3 && z[1] == INT64_MIN && z[2] == 3 && z[3] == -5));
        CHECK(set.loops->unary[int(UnaryOp::exp)][int(Compute::i32)] == nullptr);
    }
}

TEST_CASE("scalar loops", "[cpu_loops]") {
    const std::vector<float> x = {-3, -0.5f, 0, 0.25f, 2, nan_value, inf};
    std::vector<float> y(x.size());
    const auto n = std::int64_t(x.size());
    for (const Set& set : sets()) {
        const auto run = [&](UnaryOp op, double alpha, double beta, const auto& reference) {
            set.loops->unary[int(op)][int(Compute::f32)](y.data(), x.data(), n, alpha, beta);
            for (std::size_t i = 0; i < x.size(); ++i) {
                const float expected = reference(x[i]);
                INFO(set.name << " op " << int(op) << " of " << x[i] << " gives " << y[i]);
                CHECK((std::isnan(expected) ? std::isnan(y[i]) : y[i] == expected));
            }
        };
        run(UnaryOp::add_scalar, 1.5, 0, [](float v) { return v + 1.5f; });
        run(UnaryOp::rsub_scalar, 1.5, 0, [](float v) { return 1.5f - v; });
        run(UnaryOp::mul_scalar, 3, 0, [](float v) { return v * 3; });
        run(UnaryOp::div_scalar, 3, 0, [](float v) { return v / 3; });
        run(UnaryOp::rdiv_scalar, 3, 0, [](float v) { return 3 / v; });
        run(UnaryOp::clamp, -1, 1, [](float v) { return v != v ? v : v < -1 ? -1.0f : v > 1 ? 1.0f : v; });
    }
}

TEST_CASE("gradient functors match their derivatives", "[cpu_loops]") {
    std::vector<float> x = arguments(-6, 6), g(x.size(), 1.0f), y(x.size());
    const auto n = std::int64_t(x.size());
    const struct {
        BinaryOp op;
        Real (*reference)(Real);
    } cases[] = {
        {BinaryOp::gelu_grad, [](Real v) { return cdf(v) + v * phi(v); }},
        {BinaryOp::gelu_tanh_grad,
         [](Real v) {
             const Real k = 2 * std::sqrt(2 / std::acos(Real(-1))), c = Real(0.044715);
             const Real s = logistic(k * (v + c * v * v * v));
             return s + v * s * (1 - s) * k * (1 + 3 * c * v * v);
         }},
        {BinaryOp::silu_grad, [](Real v) { return logistic(v) * (1 + v * (1 - logistic(v))); }},
        {BinaryOp::tanh_grad, [](Real v) { return 1 - v * v; }},
        {BinaryOp::sigmoid_grad, [](Real v) { return v * (1 - v); }},
    };
    for (const Set& set : sets())
        for (const auto& c : cases) {
            set.loops->binary[int(c.op)][int(Compute::f32)](y.data(), g.data(), x.data(), n, Single::none);
            for (std::size_t i = 0; i < x.size(); ++i) {
                if (!(std::fabs(x[i]) < 1e4f)) continue;
                const Real expected = c.reference(Real(x[i]));
                const bool close = std::fabs(Real(y[i]) - expected) <= 4e-7L + 4e-7L * x[i] * x[i];
                INFO(set.name << " op " << int(c.op) << " at " << x[i] << " gives " << y[i] << " not "
                              << double(expected));
                if (!close) CHECK(close);
            }
            const float large[] = {3e38f, -3e38f, 1e20f, -1e20f};
            set.loops->binary[int(BinaryOp::gelu_tanh_grad)][0](y.data(), g.data(), large, 4, Single::none);
            CHECK((y[0] == 1 && y[1] == 0 && y[2] == 1 && y[3] == 0));
            set.loops->binary[int(BinaryOp::gelu_grad)][0](y.data(), g.data(), large, 4, Single::none);
            CHECK((y[0] == 1 && y[1] == 0 && y[2] == 1 && y[3] == 0));
        }
}

TEST_CASE("GELU and its gradient: the left tail, and absolute errors of the gradient", "[cpu_loops]") {
    std::vector<float> x, y;
    for (float v = -14; v < 10; v += 0.00037f) x.push_back(v);
    const std::vector<float> ones(x.size(), 1.0f);
    const auto n = std::int64_t(x.size());
    y = x;
    for (const Set& set : sets()) {
        INFO(set.name);
        Real near = 0, far = 0, slope = 0;
        bool zero = true;
        set.loops->unary[int(UnaryOp::gelu)][int(Compute::f32)](y.data(), x.data(), n, 0, 0);
        for (std::size_t i = 0; i < x.size(); ++i) {
            const Real want = x[i] * cdf(x[i]), error = std::fabs((y[i] - want) / want);
            if (x[i] <= -9.0625f)
                zero = zero && y[i] == 0 && std::signbit(y[i]);
            else if (x[i] != 0)
                (x[i] > -5 ? near : far) = std::max(x[i] > -5 ? near : far, error);
        }
        const float ends[] = {-inf, inf, nan_value, -0.0f};
        set.loops->unary[int(UnaryOp::gelu)][int(Compute::f32)](y.data(), ends, 4, 0, 0);
        CHECK((std::isnan(y[0]) && y[1] == inf && std::isnan(y[2]) && y[3] == 0 && std::signbit(y[3])));
        CHECK(zero);
        CHECK(near < 4e-5L);
        CHECK(far < 3e-3L);
        set.loops->binary[int(BinaryOp::gelu_grad)][int(Compute::f32)](y.data(), ones.data(), x.data(), n,
                                                                       Single::none);
        for (std::size_t i = 0; i < x.size(); ++i)
            slope = std::max(slope, std::fabs(y[i] - (cdf(x[i]) + x[i] * phi(x[i]))));
        CHECK(slope < 7.5e-8L);
    }
}

TEST_CASE("16-bit loops round what the float loops compute", "[cpu_loops]") {
    constexpr std::int64_t longest = 70;
    std::mt19937 bits(13);
    for (const Set& set : sets())
        for (const Dtype type : {float16, bfloat16}) {
            std::vector<std::uint16_t> a(longest), b(longest);
            for (std::uint16_t& v : a) v = std::uint16_t(bits());
            for (std::uint16_t& v : b) v = std::uint16_t(bits());
            std::vector<float> wide_a(longest), wide_b(longest), wide(longest);
            cpu::convert(a.data(), type, wide_a.data(), float32, longest);
            cpu::convert(b.data(), type, wide_b.data(), float32, longest);
            // The sign and the payload of a NaN depend on the order of operands.
            const auto same = [type](std::uint16_t x, std::uint16_t y) {
                const int infinite = type == float16 ? 0x7c00 : 0x7f80;
                return x == y || ((x & 0x7fff) > infinite && (y & 0x7fff) > infinite);
            };
            const auto check = [&](std::int64_t n, const auto& run_wide, const auto& run) {
                std::vector<std::uint16_t> expected(longest, 9), got = expected;
                run_wide(wide.data());
                cpu::convert(wide.data(), float32, expected.data(), type, n);
                run(got.data());
                CHECK(std::equal(got.begin(), got.end(), expected.begin(), same));
            };
            int checked = 0;
            for (std::int64_t n = 0; n <= longest; ++n) {
                for (int op = 0; op < int(UnaryOp::count); ++op) {
                    const UnaryLoop loop = set.loops->unary16[op][int(type)];
                    if (!loop) continue;
                    INFO(set.name << ", unary op " << op << " of " << n);
                    check(
                        n, [&](float* to) { set.loops->unary[op][0](to, wide_a.data(), n, 0, 0); },
                        [&](void* to) { loop(to, a.data(), n, 0, 0); });
                }
                for (int op = 0; op < int(BinaryOp::count); ++op) {
                    const BinaryLoop loop = set.loops->binary16[op][int(type)];
                    if (!loop) continue;
                    for (const Single single : {Single::none, Single::a, Single::b}) {
                        INFO(set.name << ", binary op " << op << " of " << n << ", single " << int(single));
                        check(
                            n,
                            [&](float* to) {
                                set.loops->binary[op][0](to, wide_a.data(), wide_b.data(), n, single);
                            },
                            [&](void* to) { loop(to, a.data(), b.data(), n, single); });
                        ++checked;
                    }
                }
            }
            CHECK(checked == 5 * 3 * (longest + 1));
        }
}

TEST_CASE("sums, dot products and extremes of every length", "[cpu_loops]") {
    std::mt19937 bits(11);
    std::uniform_real_distribution<float> uniform(-1, 3);
    std::vector<float> x(5000), z(5000);
    for (float& v : x) v = uniform(bits);
    for (float& v : z) v = uniform(bits);
    for (const Set& set : sets())
        for (std::int64_t n : {1, 2, 7, 15, 16, 17, 63, 64, 65, 127, 128, 1000, 1023, 1024, 1025, 4999}) {
            Real sum = 0, squares = 0, dot = 0;
            float largest = -inf, smallest = inf;
            for (std::int64_t i = 0; i < n; ++i) {
                const auto j = std::size_t(i);
                sum += x[j], squares += Real(x[j]) * x[j], dot += Real(x[j]) * z[j];
                largest = std::max(largest, x[j]), smallest = std::min(smallest, x[j]);
            }
            const RealLoops<float>& f = set.loops->f32;
            INFO(set.name << " n = " << n);
            CHECK(f.sum(x.data(), n) == Approx(double(sum)).epsilon(2e-6));
            CHECK(f.sum_squares(x.data(), n) == Approx(double(squares)).epsilon(2e-6));
            CHECK(f.dot(x.data(), z.data(), n) == Approx(double(dot)).epsilon(2e-6).margin(1e-6));
            CHECK(f.max(x.data(), n) == largest);
            CHECK(f.min(x.data(), n) == smallest);
            for (const std::int64_t at : {std::int64_t(0), n / 2, n - 1}) {
                std::vector<float> with_nan = x;
                with_nan[std::size_t(at)] = nan_value;
                CHECK(std::isnan(f.max(with_nan.data(), n)));
                CHECK(std::isnan(f.min(with_nan.data(), n)));
                CHECK_FALSE(f.all_finite(with_nan.data(), n, 1));
                with_nan[std::size_t(at)] = 3e38f;
                CHECK(f.all_finite(with_nan.data(), n, 1));
                CHECK_FALSE(f.all_finite(with_nan.data(), n, 2));
            }
        }
    std::vector<float> tenths(10'000'000, 0.1f);
    for (const Set& set : sets())
        CHECK(set.loops->f32.sum(tenths.data(), 10'000'000) == Approx(1e7 * double(0.1f)).epsilon(4e-7));
}

TEST_CASE("Philox blocks equal the scalar generator, also beyond 32 bits", "[cpu_loops]") {
    constexpr std::uint32_t untouched = 0xabcdef01;
    constexpr std::uint64_t key = 0x123456789abcdefu;
    for (const Set& set : sets())
        for (const std::uint64_t first : {std::uint64_t(0), std::uint64_t(0xfffffff8), ~std::uint64_t(5)})
            for (std::uint64_t count = 0; count <= 100; ++count) {
                std::vector<std::uint32_t> words(4 * count + 4, untouched), expected = words;
                set.loops->philox_blocks(words.data(), key, first, std::int64_t(count));
                for (std::uint64_t i = 0; i < count; ++i)
                    for (std::size_t j = 0; j < 4; ++j) expected[4 * i + j] = philox(key, first + i).v[j];
                INFO(set.name << ", " << count << " blocks from " << first);
                CHECK((words == expected));
            }
}

TEST_CASE("half-words that are kept, of every length from every place", "[cpu_loops]") {
    std::mt19937 bits(12);
    std::vector<std::uint32_t> words(100);
    for (std::uint32_t& word : words) word = bits();
    words[3] = 0xffff0000;
    for (const Set& set : sets())
        for (const std::uint32_t threshold : {0u, 1u, 6554u, 32768u, 65535u, 65536u})
            for (std::size_t first = 0; first < 8; ++first)
                for (std::size_t n = 0; n <= 140; ++n) {
                    std::vector<std::uint8_t> to(n + 1, 7), expected = to;
                    set.loops->kept(to.data(), words.data(), std::int64_t(first), std::int64_t(n), threshold);
                    for (std::size_t i = 0; i < n; ++i)
                        expected[i] = (words[(first + i) / 2] >> (first + i) % 2 * 16 & 0xffff) >= threshold;
                    INFO(set.name << ", threshold " << threshold << ", " << n << " from " << first);
                    CHECK((to == expected));
                }
}
