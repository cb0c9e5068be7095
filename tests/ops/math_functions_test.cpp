// Elementary and special functions against 40 digits: errors, edges, exact results, and gradients where a
// formula could give NaN.
#include <catch2/catch.hpp>

#include <cmath>

#include "mezzo/mezzo.h"
#include "tests/reference/math.h"
#include "tests/support/support.h"

using namespace mezzo;
using namespace mezzo::test;

namespace {

using Doubles = std::vector<double>;
using Unary = Tensor (*)(const Tensor&);

Tensor of(const Doubles& values, Dtype dtype = float64) {
    return tensor_of(values, {std::int64_t(values.size())}, dtype);
}

// Values and gradients of f.
struct Both {
    Doubles y, slope;
};
Both run(Unary f, const Doubles& x, Dtype dtype, Device device = cpu_device) {
    const Tensor leaf = of(x, dtype).to(device).set_requires_grad();
    const Tensor y = f(leaf);
    sum(y).backward();
    return {doubles(y), doubles(leaf.grad())};
}

// Relative errors, plus an absolute error near zeros of the function.
template <std::size_t n> void check_function(const char* name, Unary f, const reference::MathRow (&rows)[n]) {
    for (const Device device : devices())
        for (const Dtype dtype : {float32, float64}) {
            Doubles x;
            for (const auto& row : rows) x.push_back(row.x);
            const Both got = run(f, x, dtype, device);
            const double most = dtype_info(dtype).max, least = dtype == float32 ? 0x1p-126 : 0x1p-1022;
            for (std::size_t i = 0; i < n; ++i) {
                if (dtype == float32 && double(float(x[i])) != x[i]) continue;
                CAPTURE(name, mezzo::name(dtype), x[i], got.y[i], rows[i].y, got.slope[i], rows[i].slope);
                const double relative = dtype == float32 ? 1e-6 : 1e-12;
                const auto near = [&](double a, double b) {
                    if (std::abs(b) > most) return std::isinf(a);
                    return std::abs(a - b) <= relative * std::abs(b) + least + 3e-14;
                };
                CHECK(near(got.y[i], rows[i].y));
                CHECK(near(got.slope[i], rows[i].slope));
            }
        }
}

Tensor hardshrink_half(const Tensor& x) { return hardshrink(x); }
Tensor softshrink_half(const Tensor& x) { return softshrink(x); }

#define CHECK_FUNCTION(name) check_function(#name, name, reference::math_##name)

// f(x) for one number, in float64.
double at(Unary f, double x) { return doubles(f(of({x})))[0]; }
double slope_at(Unary f, double x) { return run(f, {x}, float64).slope[0]; }

}  // namespace

TEST_CASE("elementary functions agree with 40 digits", "[math_functions]") {
    CHECK_FUNCTION(exp2);
    CHECK_FUNCTION(log2);
    CHECK_FUNCTION(log10);
    CHECK_FUNCTION(tan);
    CHECK_FUNCTION(asin);
    CHECK_FUNCTION(acos);
    CHECK_FUNCTION(atan);
    CHECK_FUNCTION(sinh);
    CHECK_FUNCTION(cosh);
    CHECK_FUNCTION(asinh);
    CHECK_FUNCTION(acosh);
    CHECK_FUNCTION(atanh);
}

TEST_CASE("special functions agree with 40 digits", "[math_functions]") {
    CHECK_FUNCTION(erfc);
    CHECK_FUNCTION(erfinv);
    CHECK_FUNCTION(lgamma);
    CHECK_FUNCTION(digamma);
}

TEST_CASE("powers of the base have exact logarithms", "[math_functions]") {
    for (const Dtype dtype : {float16, bfloat16, float32, float64}) {
        CAPTURE(name(dtype));
        for (int n = -14; n <= 15; ++n) {
            CHECK(doubles(log2(of({std::ldexp(1.0, n)}, dtype)))[0] == n);
            CHECK(doubles(exp2(of({double(n)}, dtype)))[0] == std::ldexp(1.0, n));
        }
        CHECK(doubles(log10(of({0.001, 1, 10, 100, 1000}, float64).to(dtype)))[4] == 3);
    }
    for (int n = 0; n <= 22; ++n) CHECK(at(log10, std::pow(10.0, n)) == n);
    for (int n = -1074; n <= 1023; n += 7) CHECK(at(log2, std::ldexp(1.0, n)) == n);
    CHECK(log2(of({8}).to(int64)).dtype() == float32);
    CHECK(doubles(log2(full({1}, 8, {.dtype = int64})))[0] == 3);
}

TEST_CASE("edges of elementary and special functions", "[math_functions]") {
    for (Unary f : {asin, acos, erfinv, atanh}) {
        CHECK(std::isnan(at(f, 1.5)));
        CHECK(std::isnan(at(f, -1.5)));
        CHECK(std::isinf(slope_at(f, 1)));
        CHECK(std::isinf(slope_at(f, -1)));
    }
    for (Unary f :
         {exp2,      log2,  log10, tan,    asin,   acos,    atan, sinh,        cosh,      asinh,
          acosh,     atanh, erfc,  erfinv, lgamma, digamma, selu, hardsigmoid, hardswish, hardshrink_half,
          logsigmoid})
        CHECK(std::isnan(at(f, NAN)));
    CHECK(at(erfinv, 1) == INFINITY);
    CHECK(at(erfinv, -1) == -INFINITY);
    CHECK(at(atanh, 1) == INFINITY);
    CHECK(at(log2, 0) == -INFINITY);
    CHECK(at(acosh, 1) == 0);
    CHECK(std::isnan(at(acosh, 0.5)));
    CHECK(std::isnan(at(acosh, -1e10)));
    CHECK(at(asinh, -INFINITY) == -INFINITY);
    CHECK(at(sinh, -INFINITY) == -INFINITY);
    CHECK(at(cosh, -INFINITY) == INFINITY);
    CHECK(std::signbit(at(sinh, -0.0)));
    CHECK(slope_at(sinh, 0) == 1);
    CHECK(slope_at(asinh, 0) == 1);
    CHECK(at(erfc, -INFINITY) == 2);
    CHECK(at(erfc, INFINITY) == 0);
    for (const double pole : Doubles{0.0, -0.0, -1.0, -7.0, -1e20, INFINITY, -INFINITY})
        CHECK(at(lgamma, pole) == INFINITY);
    CHECK(at(digamma, 0.0) == -INFINITY);
    CHECK(at(digamma, -0.0) == INFINITY);
    CHECK(std::isnan(at(digamma, -3)));
    CHECK(at(digamma, INFINITY) == INFINITY);
    CHECK(slope_at(lgamma, 0) == -INFINITY);
}

TEST_CASE("functions of two real tensors convert integers and booleans", "[math_functions]") {
    const Tensor real = of({3.5, 2, 1}), whole = of({4, 3, 1}, int32), truth = gt(whole, 3);
    for (const auto f : {logaddexp, hypot, xlogy, atan2}) {
        for (const Dtype dtype : {float16, float32, float64})
            for (const Tensor& other : {whole, truth}) {
                const Tensor x = real.to(dtype), y = other.to(dtype);
                CHECK(f(x, other).dtype() == dtype);
                CHECK(doubles(f(x, other)) == doubles(f(x, y)));
                CHECK(f(other, x).dtype() == dtype);
                CHECK(doubles(f(other, x)) == doubles(f(y, x)));
            }
        CHECK(f(whole, whole).dtype() == float32);
        CHECK(doubles(f(whole, truth)) == doubles(f(whole.to(float32), truth.to(float32))));
    }
}

TEST_CASE("functions of two tensors keep their range", "[math_functions]") {
    const auto both = [](auto f, double a, double b) {
        const Tensor x = of({a}).set_requires_grad(), y = of({b}).set_requires_grad();
        const Tensor z = f(x, y);
        z.backward();
        return Doubles{doubles(z)[0], doubles(x.grad())[0], doubles(y.grad())[0]};
    };
    const auto sum_of_logs = [](const Tensor& a, const Tensor& b) { return logaddexp(a, b); };
    CHECK(both(sum_of_logs, 1000, 1000)[0] == Approx(1000 + std::log(2.0)));
    CHECK(both(sum_of_logs, -INFINITY, 3) == Doubles{3, 0, 1});
    CHECK(both(sum_of_logs, -INFINITY, -INFINITY)[0] == -INFINITY);
    CHECK(std::isfinite(both(sum_of_logs, -INFINITY, -INFINITY)[1]));
    CHECK(both(sum_of_logs, INFINITY, -5)[0] == INFINITY);
    CHECK(std::isnan(both(sum_of_logs, NAN, 1)[0]));
    const Tensor one = of({2}).set_requires_grad(), two = of({2}).set_requires_grad();
    const Tensor g = autograd::grad({logaddexp(one, two)}, {one}, {.create_graph = true})[0];
    CHECK(doubles(autograd::grad({g}, {two})[0]) == Doubles{-0.25});  // equal numbers are no kink
    const auto leg = [](const Tensor& a, const Tensor& b) { return hypot(a, b); };
    CHECK(both(leg, 3e300, -4e300)[0] == Approx(5e300).epsilon(1e-15));
    CHECK(both(leg, 3e-300, 4e-300)[0] == Approx(5e-300).epsilon(1e-15));
    CHECK(both(leg, 0, 0) == Doubles{0, 0, 0});
    CHECK(both(leg, INFINITY, NAN)[0] == INFINITY);
    CHECK(doubles(hypot(of({3e38}, float32), of({1e38}, float32)))[0] == Approx(std::hypot(3e38, 1e38)));
    const auto entropy = [](const Tensor& a, const Tensor& b) { return xlogy(a, b); };
    CHECK(both(entropy, 0, 0) == Doubles{0, 0, 0});
    CHECK(both(entropy, 0, 2) == Doubles{0, std::log(2.0), 0});
    CHECK(both(entropy, 0, INFINITY)[0] == 0);
    CHECK(std::isnan(both(entropy, 0, NAN)[0]));
    CHECK(xlogy(arange(3), arange(3)).dtype() == float32);
}

TEST_CASE("activations at their kinks have PyTorch's gradients", "[math_functions]") {
    const Doubles kinks{-3, -0.5, 0, 0.5, 3};
    CHECK(run(hardsigmoid, kinks, float64).slope == Doubles{0, 1.0 / 6, 1.0 / 6, 1.0 / 6, 0});
    CHECK(run(hardswish, {-3, 0, 3}, float64).slope == Doubles{0, 0.5, 1});
    CHECK(run(hardshrink_half, kinks, float64).slope == Doubles{1, 0, 0, 0, 1});
    CHECK(run(softshrink_half, kinks, float64).slope == Doubles{1, 0, 0, 0, 1});
    CHECK(run(relu6, {-1, 0, 3, 6, 7}, float64).slope == Doubles{0, 0, 1, 0, 0});
    CHECK(run([](const Tensor& x) { return celu(x, 2); }, {0, 1e4, -1e4}, float64).slope == Doubles{1, 1, 0});
    CHECK(run([](const Tensor& x) { return threshold(x, 0.5, 9); }, {0.5, 1, -1}, float64).slope ==
          Doubles{0, 1, 0});
    CHECK(run([](const Tensor& x) { return nan_to_num(x); }, {NAN, INFINITY, 2}, float64).slope ==
          Doubles{0, 0, 1});
    CHECK(at(logsigmoid, -800) == -800);
    CHECK(at(hardswish, 1e308) == 1e308);
    const Tensor w = of({0.5, 2}).set_requires_grad(), x = tensor_of({-1, INFINITY, 3, -4}, {2, 2}, float64);
    prelu(x, w).sum().backward();
    CHECK(doubles(w.grad()) == Doubles{-1, -4});
    CHECK(doubles(prelu(x, of({0.25}))) == Doubles{-0.25, INFINITY, 3, -1});
    const Tensor filled = nan_to_num(of({NAN, INFINITY, -INFINITY, 1}, float16), {.nan = 7, .neginf = -3});
    CHECK(doubles(filled) == Doubles{7, 65504, -3, 1});
}
