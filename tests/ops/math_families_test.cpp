// Division with rounding, comparisons, p-norms, medians, modes, running extremes, contractions, distances,
// grids and random draws: PyTorch's values where it has a rule of its own, edges and errors.
#include <catch2/catch.hpp>

#include <cmath>

#include "mezzo/mezzo.h"
#include "tests/support/support.h"

using namespace mezzo;
using namespace mezzo::test;

namespace {

using Doubles = std::vector<double>;
using Integers = std::vector<std::int64_t>;
constexpr double inf = INFINITY;
constexpr std::int64_t least = INT64_MIN, most = INT64_MAX;

Tensor of(const Doubles& values, const Shape& shape) { return Tensor::from(values, shape); }
Tensor of(const Doubles& values) { return of(values, {std::int64_t(values.size())}); }
Tensor whole(const Integers& values) { return Tensor::from(values, {std::int64_t(values.size())}); }
Integers integers(const Tensor& x) { return x.to_vector<std::int64_t>(); }

// The gradient of sum(f(x)).
template <class F> Doubles gradient(const F& f, const Tensor& given) {
    const Tensor x = given.clone().set_requires_grad();
    sum(f(x)).backward();
    return doubles(x.grad());
}

// That many equal rows.
Tensor expand_rows(std::int64_t rows) { return of({0.3, -1.7, 2.1}, {1, 3}).expand({rows, 3}).clone(); }

template <class F> ErrorKind error_of(const F& f) {
    try {
        f();
    } catch (const Error& e) {
        return e.kind();
    }
    FAIL("no error");
    return ErrorKind::state;
}

}  // namespace

TEST_CASE("division rounds down or towards 0", "[math_families]") {
    using enum RoundingMode;
    const Tensor a = of({7, -7, 7, -7, 1, 5, -1, -inf}), b = of({2, 2, -2, -2, 0.1, 0, inf, 2});
    const Doubles down = doubles(floor_divide(a, b)), cut = doubles(div(a, b, trunc));
    CHECK(Doubles(down.begin(), down.end() - 1) ==
          Doubles{3, -4, -4, 3, 9, inf, -1});  // 1 // 0.1 as in Python
    CHECK(std::isnan(down.back()));
    CHECK(cut == Doubles{3, -3, -3, 3, 10, inf, 0, -inf});
    const Tensor i = whole({7, -7, least, most, 9, least}), j = whole({-2, 2, 3, 1, 0, 1});
    CHECK(integers(div(i, j, floor)) == Integers{-4, -4, least / 3 - 1, most, 0, least});
    CHECK(integers(div(i, j, trunc)) == Integers{-3, -3, least / 3, most, 0, least});
    CHECK(integers(div(whole({most, most - 1}), 10, floor)) == Integers{most / 10, most / 10});
    CHECK(integers(fmod(i, j)) == Integers{1, -1, least % 3, 0, 0, 0});
    CHECK(floor_divide(i, 2.5).dtype() == float32);
    CHECK(floor_divide(i.to(int32), j).dtype() == int64);
    CHECK(doubles(fmod(of({5.5, -5.5, 5.5, -0.75}), -2)) == Doubles{1.5, -1.5, 1.5, -0.75});
    CHECK(std::signbit(doubles(fmod(of({-4}), 2))[0]));
    CHECK(gradient([](const Tensor& x) { return fmod(x, 2); }, of({0, -3, 5})) == Doubles{1, 1, 1});
    CHECK_FALSE(floor_divide(of({1}).set_requires_grad(), 2).requires_grad());
    for (const RoundingMode rounding : {floor, trunc})
        for (const Dtype dtype : {float32, int32})
            CHECK(div(ones({3, 1}, {.dtype = dtype}), ones({4}, {.dtype = dtype}), rounding).shape() ==
                  Shape{3, 4});
    CHECK(error_of([&] { floor_divide(i, 0); }) == ErrorKind::value);
    CHECK(error_of([&] { fmod(i, 0); }) == ErrorKind::value);
    CHECK(error_of([&] { div(gt(i, 0), gt(i, 0), floor); }) == ErrorKind::dtype);
    CHECK(error_of([&] { div(i, j, RoundingMode(7)); }) == ErrorKind::value);
}

TEST_CASE("tensors are close or equal", "[math_families]") {
    const Tensor a = of({1, 1, inf, inf, NAN, 0}), b = of({1.1, 1.3, inf, -inf, NAN, -0.0});
    CHECK(integers(isclose(a, b, {.rtol = 0.1})) == Integers{1, 0, 1, 0, 0, 1});
    CHECK(integers(isclose(a, b, {.atol = 0.4, .equal_nan = true})) == Integers{1, 1, 1, 0, 1, 1});
    CHECK(integers(isclose(whole({10}), whole({11}), {.rtol = 0.1})) == Integers{1});
    CHECK(equal(a.slice(0, 0, 4), a.slice(0, 0, 4)));
    CHECK_FALSE(equal(a, a));  // NaN
    CHECK_FALSE(equal(ones({2}), ones({1})));
    CHECK(equal(zeros({0, 3}), zeros({0, 3})));
    CHECK(integers(logical_xor(whole({0, 0, 2, 2}), of({0, 3, 0, NAN}))) == Integers{0, 1, 1, 0});
    CHECK(isclose(ones({3, 1}), ones({4})).shape() == Shape{3, 4});
    CHECK(error_of([&] { isclose(a, b, {.rtol = -1}); }) == ErrorKind::value);
}

TEST_CASE("p-norms and their gradients at 0", "[math_families]") {
    const Tensor x = of({3, 0, -4, 0, 0, 0}, {2, 3});
    const auto norms = [&](double p) { return doubles(vector_norm(x, p, {1})); };
    CHECK(norms(0) == Doubles{2, 0});
    CHECK(norms(1) == Doubles{7, 0});
    CHECK(norms(2) == Doubles{5, 0});
    CHECK(norms(inf) == Doubles{4, 0});
    CHECK(norms(-inf) == Doubles{0, 0});
    CHECK(norms(-1) == Doubles{0, 0});
    CHECK(norms(3)[0] == Approx(std::cbrt(91)).epsilon(1e-14));
    CHECK(norms(0.5)[0] == Approx(std::pow(std::sqrt(3) + 2, 2)).epsilon(1e-14));
    for (const double p : {0.0, 0.5, 1.0, 1.5, 2.0, 3.0, inf, -inf, -1.0}) {
        const Doubles g = gradient([&](const Tensor& t) { return vector_norm(t, p, {1}); }, x);
        CAPTURE(p, g);
        for (const std::size_t zero : {1, 3, 4, 5}) CHECK(g[zero] == 0);
        CHECK(std::isfinite(g[0]));
    }
    CHECK(vector_norm(x).item<double>() == 5);
    CHECK(vector_norm(x, 3, {0, 1}, {.keepdim = true}).shape() == Shape{1, 1});
    CHECK(doubles(norm(x, 1, {0, 1})) == Doubles{7});
    CHECK(vector_norm(x.to(float16), 3, {}, {.dtype = float64, .explicit_dtype = true}).dtype() == float64);
    // A sum of cubes would leave the range of float64, and that of 16 bit before the root.
    CHECK(vector_norm(of({1e200, 1e200}), 3).item<double>() == Approx(std::cbrt(2) * 1e200));
    CHECK(vector_norm(full({4}, 6e4, {.dtype = float16}), 5).item<float>() == inf);
    CHECK(vector_norm(full({4}, 1e4, {.dtype = float16}), 5).item<float>() ==
          Approx(std::pow(4, 0.2) * 1e4).epsilon(1e-3));
    CHECK(std::isnan(vector_norm(of({1, NAN}), 3).item<double>()));
    CHECK(vector_norm(of({1, -inf}), 3).item<double>() == inf);
    CHECK(vector_norm(zeros({0}), 3).item<float>() == 0);
    CHECK(error_of([&] { vector_norm(zeros({2, 0}), inf, {1}); }) == ErrorKind::shape);
    CHECK(error_of([&] { vector_norm(arange(3)); }) == ErrorKind::dtype);
    CHECK(error_of([&] { vector_norm(x, NAN); }) == ErrorKind::value);
}

TEST_CASE("medians and modes", "[math_families]") {
    const Tensor x = of({3, 1, 2, 4, 7, NAN, 5, NAN}, {2, 4});
    const Sorted rows = median(x, 1);
    CHECK(doubles(rows.values)[0] == 2);
    CHECK(std::isnan(doubles(rows.values)[1]));
    CHECK(integers(rows.indices) == Integers{2, 1});
    CHECK(median(x, 1, {.keepdim = true}).indices.shape() == Shape{2, 1});
    CHECK(std::isnan(median(x).item<double>()));
    CHECK(median(whole({5, 1, 9, 3})).item<int>() == 3);
    CHECK(median(scalar(4), 0).values.item<float>() == 4);
    const auto of_all = [](const Tensor& t) { return median(t); };
    CHECK(gradient(of_all, of({2, 1, 2, 5, 0})) == Doubles{0.5, 0, 0.5, 0, 0});
    const Sorted most_frequent = mode(of({2, 1, 2, 1, NAN, NAN, NAN, 4}, {2, 4}));
    CHECK(doubles(most_frequent.values) == Doubles{1, 4});
    CHECK(integers(most_frequent.indices) == Integers{3, 3});
    CHECK(integers(mode(whole({4, 4, 1, 1, 1, 4, 0}), 0, {.keepdim = true}).indices) == Integers{4});
    CHECK(gradient([](const Tensor& t) { return mode(t, 0).values; }, of({2, 3, 2})) == Doubles{0, 0, 1});
    CHECK(error_of([] { median(zeros({0})); }) == ErrorKind::shape);
    CHECK(error_of([] { mode(zeros({2, 0})); }) == ErrorKind::shape);
}

TEST_CASE("running extremes and sums of exponentials", "[math_families]") {
    const Tensor x = of({2, 5, 5, 1, NAN, 7, NAN, 0});
    const Sorted up = cummax(x, 0);
    CHECK(integers(up.indices) == Integers{0, 1, 2, 2, 4, 4, 6, 6});
    CHECK(Doubles{doubles(up.values)[3], doubles(up.values)[2]} == Doubles{5, 5});
    CHECK(integers(cummin(x.slice(0, 0, 4), 0).indices) == Integers{0, 0, 0, 3});
    CHECK(gradient([](const Tensor& t) { return cummax(t, 0).values; }, of({1, 3, 2})) == Doubles{1, 2, 0});
    CHECK(integers(cummax(gt(x, 4), 0).values) == Integers{0, 1, 1, 1, 1, 1, 1, 1});
    CHECK(cummin(zeros({0, 3}), 1).values.shape() == Shape{0, 3});
    CHECK(cummax(scalar(2), 0).indices.item<int>() == 0);
    const Tensor logs = of({-inf, -inf, 1000, 1000, -1000});
    const Doubles sums = doubles(logcumsumexp(logs, 0));
    CHECK(Doubles(sums.begin(), sums.begin() + 3) == Doubles{-inf, -inf, 1000});
    CHECK(sums[4] == Approx(1000 + std::log(2.0)));
    for (const double g : gradient([](const Tensor& t) { return logcumsumexp(t, 0).slice(0, 2, 5); }, logs))
        CHECK(std::isfinite(g));
    CHECK(error_of([] { logcumsumexp(arange(3), 0); }) == ErrorKind::dtype);
    CHECK(error_of([] { cummax(zeros({2}), 1); }) == ErrorKind::shape);
    const Tensor holes = of({1, NAN, 3, NAN}, {2, 2});
    CHECK(doubles(nansum(holes, {0})) == Doubles{4, 0});
    CHECK(nanmean(holes).item<double>() == 2);
    CHECK(std::isnan(doubles(nanmean(holes, {0}))[1]));
    CHECK(gradient([](const Tensor& t) { return nanmean(t); }, holes) == Doubles{0.5, 0, 0.5, 0});
    CHECK(nansum(gt(holes, 0)).dtype() == int64);
}

TEST_CASE("contractions, grids and differences", "[math_families]") {
    const Tensor a = randn({2, 3, 4}), b = randn({4, 3, 5});
    CHECK(all_close(tensordot(a, b, {1, 2}, {1, 0}), einsum("aij,jib->ab", {a, b}), 1e-5, 1e-5));
    CHECK(all_close(tensordot(a, b, 1), einsum("abi,icd->abcd", {a, b}), 1e-5, 1e-5));
    CHECK(tensordot(a, b, 0).shape() == Shape{2, 3, 4, 4, 3, 5});
    CHECK(all_close(tensordot(a, ones({4, 1}), {1, 2}, {1, 0}), sum(a, {1, 2}), 1e-5, 1e-5));  // broadcast
    CHECK(doubles(kron(of({1, 2}), of({1, 10, 100}, {3, 1}))) == Doubles{1, 2, 10, 20, 100, 200});
    CHECK(kron(ones({2, 0, 3}), ones({2})).shape() == Shape{2, 0, 6});
    CHECK(trace(arange(6).reshape({2, 3})).item<int>() == 4);
    const Tensors grid = meshgrid({arange(2), arange(3)}),
                  turned = meshgrid({arange(2), arange(3)}, {MeshIndexing::xy});
    CHECK(integers(grid[0]) == Integers{0, 0, 0, 1, 1, 1});
    CHECK(integers(turned[0]) == Integers{0, 1, 0, 1, 0, 1});
    CHECK(turned[1].shape() == Shape{3, 2});
    CHECK(grid[1].is_view());
    CHECK(integers(diff(whole({1, 4, 9, 16}), 2)) == Integers{2, 2});
    CHECK(integers(diff(whole({1, 4}), 1, 0, {.prepend = whole({0}), .append = whole({5})})) ==
          Integers{1, 3, 1});
    CHECK(integers(diff(gt(whole({1, -4, -5}), 0))) == Integers{1, 0});
    CHECK(diff(zeros({2, 3}), 5).shape() == Shape{2, 0});
    CHECK(error_of([&] { tensordot(a, b, {1}, {1, 0}); }) == ErrorKind::value);
    CHECK(error_of([&] { tensordot(a, b, 2); }) == ErrorKind::shape);
    CHECK(error_of([&] { tensordot(a, b, 4); }) == ErrorKind::value);
    CHECK(error_of([&] { trace(a); }) == ErrorKind::shape);
    CHECK(error_of([&] { meshgrid({a}); }) == ErrorKind::shape);
    CHECK(error_of([&] { meshgrid({arange(2), zeros({2})}); }) == ErrorKind::dtype);
    CHECK(error_of([&] { diff(a, -1); }) == ErrorKind::value);
    CHECK(error_of([&] { diff(scalar(1)); }) == ErrorKind::shape);
    amp::Autocast scope({.dtype = float16});
    CHECK(tensordot(a, b, 1).dtype() == float32);
    CHECK(tensordot(a.to(float16), b.to(float16), 1).dtype() == float16);
}

TEST_CASE("distances of equal rows have no gradient", "[math_families]") {
    for (const std::int64_t rows : {3, 30})
        for (const double p : {0.0, 1.0, 1.5, 2.0, 3.0, inf}) {
            CAPTURE(rows, p);
            const Tensor x = expand_rows(rows), y = cdist(x, x, p);
            for (const double g : gradient([&](const Tensor& t) { return cdist(t, x, p); }, x)) CHECK(g == 0);
            CHECK(doubles(sum(y)) == Doubles{0});
        }
    const Tensor a = randn({2, 1, 30, 5}, {.dtype = float64}), b = randn({4, 2, 5}, {.dtype = float64});
    const Tensor apart = a.unsqueeze(-2) - b.unsqueeze(-3);
    for (const double p : {1.0, 2.0, 4.0})
        CHECK(all_close(cdist(a, b, p), vector_norm(apart, p, {-1}), 1e-10, 1e-10));
    CHECK(cdist(zeros({3, 0}), zeros({2, 0})).shape() == Shape{3, 2});
    CHECK(cdist(zeros({0, 3}), zeros({2, 3})).shape() == Shape{0, 2});
    CHECK(error_of([&] { cdist(a, b, -1); }) == ErrorKind::value);
    CHECK(error_of([&] { cdist(a, zeros({2, 4})); }) == ErrorKind::shape);
    CHECK(error_of([&] { cdist(zeros({2}), zeros({2})); }) == ErrorKind::shape);
}

TEST_CASE("random draws have their distributions", "[math_families]") {
    const std::int64_t n = 40000;
    const auto moments = [](const Tensor& x) {
        const Tensor y = x.to(float64);
        return Doubles{y.mean().item<double>(), y.var().item<double>()};
    };
    for (const Dtype dtype : {float16, float32, float64}) {
        manual_seed(4);
        const Tensor coins = bernoulli(full({n}, 0.25, {.dtype = dtype}));
        CHECK(coins.dtype() == dtype);
        CHECK(moments(coins)[0] == Approx(0.25).margin(0.01));
        const Doubles times = moments(exponential({n}, 2, {.dtype = dtype}));
        CHECK(times[0] == Approx(0.5).margin(0.02));
        CHECK(times[1] == Approx(0.25).margin(0.02));
        const Doubles bells = moments(normal(full({n}, 3, {.dtype = dtype}), 0.5));
        CHECK(bells[0] == Approx(3).margin(0.02));
        CHECK(bells[1] == Approx(0.25).margin(0.02));
    }
    manual_seed(7);
    const Tensor first = bernoulli(rand({50})), times = exponential({50});
    manual_seed(7);
    CHECK(equal(first, bernoulli(rand({50}))));
    CHECK(equal(times, exponential({50})));
    CHECK(gt(exponential({n}, 1, {.dtype = float16}), 0.0).to(int64).sum().item<int>() == n);
    CHECK(integers(bernoulli(of({0, 1}))) == Integers{0, 1});
    CHECK(bernoulli(zeros({3}, {.dtype = boolean}), 1.0).dtype() == boolean);
    CHECK(doubles(normal(1, zeros({2}))) == Doubles{1, 1});
    CHECK(normal(zeros({2, 1}), ones({3})).shape() == Shape{2, 3});
    CHECK_FALSE(bernoulli(full({2}, 0.5).set_requires_grad()).requires_grad());
    CHECK(exponential({2}, 1, {.requires_grad = true}).is_leaf());
    CHECK(error_of([] { bernoulli(of({0.5, 1.5})); }) == ErrorKind::value);
    CHECK(error_of([] { bernoulli(of({NAN})); }) == ErrorKind::value);
    CHECK(error_of([] { bernoulli(arange(2)); }) == ErrorKind::dtype);
    CHECK(error_of([] { bernoulli(zeros({2}), 2); }) == ErrorKind::value);
    CHECK(error_of([] { exponential({2}, 0); }) == ErrorKind::value);
    CHECK(error_of([] { normal(zeros({2}), -1); }) == ErrorKind::value);
}

TEST_CASE("random draws are the same on every device", "[math_families]") {
    for (const Device device : devices()) {
        manual_seed(5);
        const Tensor p = rand({100}), here = bernoulli(p), times = exponential({100});
        manual_seed(5);
        const Tensor q = rand({100}, {.device = device}), there = bernoulli(q);
        CHECK(doubles(here) == doubles(there));
        CHECK(all_close(times, exponential({100}, 1, {.device = device}), 1e-6, 1e-6));
    }
}

TEST_CASE("errors of activations", "[math_families]") {
    CHECK(error_of([] { celu(ones({2}), 0); }) == ErrorKind::value);
    CHECK(error_of([] { softshrink(ones({2}), -1); }) == ErrorKind::value);
    CHECK(error_of([] { prelu(ones({2, 3}), ones({2})); }) == ErrorKind::shape);
    CHECK(error_of([] { hypot(ones({2}), ones({3})); }) == ErrorKind::shape);
    CHECK(error_of([] { lgamma(Tensor()); }) == ErrorKind::value);
}

TEST_CASE("median of all: one value and gradient, recorded or not", "[math_families]") {
    const auto of_all = [](const Tensor& x) { return median(x); };
    const Tensor spoilt = of({1, NAN, 3});
    CHECK(std::isnan(median(spoilt).item<double>()));
    CHECK(std::isnan(median(spoilt.clone().set_requires_grad()).item<double>()));
    CHECK(gradient(of_all, spoilt) == Doubles{0, 1, 0});
    CHECK(gradient(of_all, of({-inf, -inf, 3})) == Doubles{0.5, 0.5, 0});
    CHECK(median(of({-inf, -inf, 3}).set_requires_grad()).item<double>() == -inf);
    for (const double value :
         {0.1, 1.0 / 3, -2e300}) {  // a sum of three, divided by three, may be another number
        const Tensor x = of({value, value, value, 5e300, -5e300});
        CHECK(median(x.set_requires_grad()).item<double>() == value);
    }
}

TEST_CASE("NaN is not lost beside infinities", "[math_families]") {
    for (const double other : {inf, -inf, 1.0}) {
        CHECK(std::isnan(doubles(logaddexp(of({NAN}), of({other})))[0]));
        CHECK(std::isnan(doubles(logaddexp(of({other}), of({NAN})))[0]));
    }
    CHECK(doubles(logaddexp(of({inf, -inf, inf}), of({inf, -inf, -inf}))) == Doubles{inf, -inf, inf});
    for (const double y : doubles(logcumsumexp(of({NAN, -inf, inf, 1}), 0))) CHECK(std::isnan(y));
    CHECK(gradient([](const Tensor& x) { return lgamma(x); }, of({inf})) == Doubles{1});
}

TEST_CASE("integers beyond 2^53 are compared exactly", "[math_families]") {
    const std::int64_t big = std::int64_t(1) << 53;
    const auto close = [](const Integers& a, const Integers& b, const IsCloseOptions& options) {
        return doubles(isclose(whole(a), whole(b), options));
    };
    CHECK(close({big + 1, big, -big - 1}, {big, big, -big}, {.rtol = 0, .atol = 0}) == Doubles{0, 1, 0});
    CHECK(close({most, least}, {most - 401, least + 1}, {.rtol = 0, .atol = 1}) == Doubles{0, 1});
    CHECK(close({most, -1}, {least, 1}, {.rtol = 0, .atol = 2}) == Doubles{0, 1});
}

TEST_CASE("exponential draws do not vanish", "[math_families]") {
    CHECK(doubles(exponential({3}, 1e60)) == Doubles{0x1p-149, 0x1p-149, 0x1p-149});
    CHECK(doubles(exponential({1}, 1e60, {.dtype = float16})) == Doubles{0x1p-24});
}
