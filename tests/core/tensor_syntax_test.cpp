// The convenient syntax of tensors: operators, methods, brackets, loops over rows, sequences.
#include <catch2/catch.hpp>

#include <cmath>
#include <ranges>
#include <type_traits>

#include "mezzo/autograd.h"
#include "mezzo/nn.h"
#include "mezzo/pointwise_ops.h"
#include "mezzo/reduce_ops.h"
#include "mezzo/shape_ops.h"
#include "mezzo/sort_ops.h"
#include "tests/support/support.h"

using namespace mezzo;
using namespace mezzo::test;
using Catch::Matchers::Contains;

namespace {

using Values = std::vector<double>;

Tensor counting(const Shape& shape) { return arange(shape.numel()).to(float32).reshape(shape); }

template <class F> ErrorKind kind_of(const F& f) {
    try {
        f();
    } catch (const Error& error) {
        return error.kind();
    }
    FAIL("nothing was thrown");
    return ErrorKind::value;
}

template <class A, class B>
concept adds_in_place = requires(A a, B b) {
    a += b;
};
template <class A>
concept is_condition = requires(A a) {
    a ? 1 : 0;
};

}  // namespace

TEST_CASE("operators: comparisons with tensors and numbers, both ways", "[pleasant]") {
    const double nan = NAN;
    for (const Device device : devices()) {
        const Tensor a = Tensor::from({-1, 0, 2, float(nan)}).to(device),
                     b = Tensor::from({0, 0, 1, 1}).to(device);
        CHECK(doubles(a == b) == Values{0, 1, 0, 0});
        CHECK(doubles(a != b) == Values{1, 0, 1, 1});
        CHECK(doubles(a < b) == Values{1, 0, 0, 0});
        CHECK(doubles(a <= b) == Values{1, 1, 0, 0});
        CHECK(doubles(a > b) == Values{0, 0, 1, 0});
        CHECK(doubles(a >= b) == Values{0, 1, 1, 0});
        CHECK(doubles(a == 0) == Values{0, 1, 0, 0});
        CHECK(doubles(a != 0) == Values{1, 0, 1, 1});
        CHECK(doubles(a < 0.5) == Values{1, 1, 0, 0});
        CHECK(doubles(a <= 0) == Values{1, 1, 0, 0});
        CHECK(doubles(a > 0) == Values{0, 0, 1, 0});
        CHECK(doubles(a >= 2) == Values{0, 0, 1, 0});
        CHECK(doubles(0 == a) == Values{0, 1, 0, 0});
        CHECK(doubles(0 != a) == Values{1, 0, 1, 1});
        CHECK(doubles(0 < a) == Values{0, 0, 1, 0});
        CHECK(doubles(0 <= a) == Values{0, 1, 1, 0});
        CHECK(doubles(0.5 > a) == Values{1, 1, 0, 0});
        CHECK(doubles(2 >= a) == Values{1, 1, 1, 0});
        CHECK((a > b).dtype() == boolean);
        CHECK(doubles(!(a > 0)) == Values{1, 1, 0, 1});
        CHECK(doubles((a > -0.5) & (a < 1)) == Values{0, 1, 0, 0});
        CHECK(doubles((a < 0) | (a > 1)) == Values{1, 0, 1, 0});
    }
    CHECK(kind_of([] { static_cast<void>(ones({2}) & ones({2})); }) == ErrorKind::dtype);
    CHECK_THROWS_WITH(ones({2}) | (ones({2}) > 0), Contains("float32 is not boolean"));
    CHECK_THROWS_WITH(ones({2}) == ones({3}), Contains("[2]") && Contains("[3]"));
    STATIC_REQUIRE(!is_condition<Tensor>);
}

TEST_CASE("operators: a += b makes the variable another tensor", "[pleasant]") {
    Tensor a = Tensor::from({1, 2});
    const Tensor other = a, view = a[0];
    a += 1;
    CHECK(doubles(a) == Values{2, 3});
    a -= Tensor::from({1, 1});
    a *= Tensor::from({2, 3});
    CHECK(doubles(a) == Values{2, 6});
    a /= 4;
    a *= 2;
    a -= 0.5;
    a += a;
    a /= Tensor::from({0.5f, 1});
    CHECK(doubles(a) == Values{2, 5});
    CHECK(doubles(other) == Values{1, 2});
    CHECK(view.item<double>() == 1);

    // The history continues, so that sums of losses and residual connections train.
    const Tensor w = Tensor::from({3}).set_requires_grad();
    Tensor loss = scalar(0);
    for (int i = 1; i <= 3; ++i) loss += (w * double(i)).sum();
    loss *= loss;
    loss.backward();
    CHECK(w.grad().item<double>() == 2 * 18 * 6);

    Tensor half = ones({2}, {.dtype = float16});
    half += ones({2});
    CHECK(half.dtype() == float32);
    // += refuses temporaries, and parameters, which optimizers identify by their tensors.
    STATIC_REQUIRE(adds_in_place<Tensor&, Tensor>);
    STATIC_REQUIRE(!adds_in_place<nn::Parameter&, Tensor>);
    STATIC_REQUIRE(!adds_in_place<nn::Parameter&, double>);
    STATIC_REQUIRE(!adds_in_place<nn::Buffer&, double>);
    STATIC_REQUIRE(
        !std::is_invocable_v<
            decltype([](auto&& x) -> decltype(std::forward<decltype(x)>(x) += 1) { return x; }), Tensor>);
}

TEST_CASE("where takes numbers", "[pleasant]") {
    const Tensor x = Tensor::from({-1, 2}), c = x > 0;
    CHECK(doubles(where(c, x, 0.0)) == Values{0, 2});
    CHECK(doubles(where(c, 0, x)) == Values{-1, 0});
    CHECK(doubles(where(c, 1, -1)) == Values{-1, 1});
    CHECK(where(c, 1, 0).dtype() == float32);
    CHECK(where(c, x.to(float16), 0.1).dtype() == float16);
    CHECK(where(c, x.to(int64), 7).dtype() == int64);
    CHECK(doubles(where(c, x.to(int64), 7)) == Values{7, 2});
    CHECK(where(c, x.to(int32), 0.5).dtype() == float32);
    CHECK(where(c, c, 2).dtype() == int64);
    const Tensor leaf = Tensor::from({-1, 2}).set_requires_grad();
    where(leaf > 0, leaf, leaf * 0.1).sum().backward();
    CHECK(all_close(leaf.grad(), Tensor::from({0.1f, 1})));
    CHECK_THROWS_WITH(where(c, Tensor(), 0.0), Contains("where"));
}

TEST_CASE("an axis or a size may be one integer", "[pleasant]") {
    const Tensor x = counting({2, 3});
    CHECK(doubles(sum(x, 1)) == Values{3, 12});
    CHECK(doubles(mean(x, -2)) == Values{1.5, 2.5, 3.5});
    CHECK(sum(x, 0, {.keepdim = true}).shape() == Shape{1, 3});
    CHECK(zeros(5).shape() == Shape{5});
    CHECK(x.reshape(-1).shape() == Shape{6});
    CHECK(x.reshape(std::size_t(6)).shape() == Shape{6});
    CHECK(doubles(flip(x, 0)) == Values{3, 4, 5, 0, 1, 2});
    STATIC_REQUIRE(!std::is_convertible_v<bool, Shape>);
    STATIC_REQUIRE(!std::is_convertible_v<double, Shape>);
}

TEST_CASE("methods are the functions of their names", "[pleasant]") {
    const Tensor x = Tensor::from({-1, 0.5f, 2, 3, -4, 6}, {2, 3}), y = counting({2, 3});
    const auto same = [](const Tensor& a, const Tensor& b) {
        return a.shape() == b.shape() && a.dtype() == b.dtype() && doubles(a) == doubles(b);
    };
#define MEZZO_UNARY(name, cast, ints, save, gradient) CHECK((abs(x) + 0.1).name().shape() == x.shape());
#include "mezzo/ops.def"
#undef MEZZO_UNARY
    CHECK(same(x.relu(), relu(x)));
    CHECK(same(x.sum(), sum(x)));
    CHECK(same(x.mean(1), mean(x, 1)));
    CHECK(same(x.max({}, {.keepdim = true}), max(x, {}, {.keepdim = true})));
    CHECK(same(x.sum({0, 1}), sum(x, {0, 1})));
    CHECK(same(x.var(1, {.correction = 0}), var(x, 1, {.correction = 0})));
    CHECK(same(x.std(), mezzo::std(x)));
    CHECK(same(x.argmax(), argmax(x)));
    CHECK(same(x.argmax(1), argmax(x, 1)));
    CHECK(same(x.any(1), any(x, 1)));
    CHECK(same(x.quantile(0.5), quantile(x, 0.5)));
    CHECK(same(x.softmax(), softmax(x)));
    CHECK(same(x.pow(2), pow(x, 2)));
    CHECK(same(x.clamp(-1, 1), clamp(x, -1, 1)));
    CHECK(same(x.add(y), x + y));
    CHECK(same(x.eq(y), x == y));
    CHECK(same(x.lt(0.7), x < 0.7));
    CHECK(same(x.logical_not(), logical_not(x)));
    CHECK(same(x.matmul(y.t()), matmul(x, y.t())));
    CHECK(same(x.masked_fill(x > 0, 7), masked_fill(x, x > 0, 7)));
    CHECK(same(x.masked_select(x > 0), Tensor::from({0.5f, 2, 3, 6})));
    CHECK(same(x.cumsum(1), cumsum(x, 1)));
    CHECK(same(x.sort(1, {.descending = true}).values, sort(x, 1, {.descending = true}).values));
    CHECK(same(x.topk(2).indices, topk(x, 2).indices));
    CHECK(same(x.tril(), Tensor::from({-1, 0, 0, 3, -4, 0}, {2, 3})));
    CHECK(same(x.flip(1), flip(x, 1)));
    CHECK(same(x.repeat({2, 1}), cat({x, x})));
    CHECK(x.split(2, 1).size() == 2);
    CHECK(x.unbind().size() == 2);
    CHECK(x.dropout(0.5, false).impl() == x.impl());
    const Tensor leaf = ones({3}).set_requires_grad();
    leaf.square().sum().backward();
    CHECK(doubles(leaf.grad()) == Values{2, 2, 2});
}

TEST_CASE("options may stand without axes, and {} and {1} are axes", "[pleasant]") {
    const Tensor x = Tensor::from({-1, 0.5f, 2, 3, -4, 6}, {2, 3});
    const Shape kept{1, 1};
    CHECK(doubles(var(x, {.correction = 0})) == doubles(var(x, {}, {.correction = 0})));
    CHECK(doubles(x.std({.correction = 0})) == doubles(x.std({}, {.correction = 0})));
    CHECK(var(x, {.correction = 0}).item<double>() < var(x).item<double>());
    CHECK(doubles(var_mean(x, {.correction = 0}).var) == doubles(x.var({.correction = 0})));
    CHECK(doubles(std_mean(x, {.correction = 0}).std) == doubles(x.std({.correction = 0})));
    for (const Tensor& y : {x.sum({.keepdim = true}),     x.mean({.keepdim = true}),
                            x.max({.keepdim = true}),     x.min({.keepdim = true}),
                            x.norm({.keepdim = true}),    x.logsumexp({.keepdim = true}),
                            x.prod({.keepdim = true}),    x.var({.keepdim = true}),
                            x.std({.keepdim = true}),     x.any({.keepdim = true}),
                            x.all({.keepdim = true}),     x.count_nonzero({.keepdim = true}),
                            x.argmax({.keepdim = true}),  x.argmin({.keepdim = true}),
                            sum(x, {.keepdim = true}),    mean(x, {.keepdim = true}),
                            max(x, {.keepdim = true}),    min(x, {.keepdim = true}),
                            norm(x, {.keepdim = true}),   logsumexp(x, {.keepdim = true}),
                            prod(x, {.keepdim = true}),   mezzo::any(x, {.keepdim = true}),
                            all(x, {.keepdim = true}),    count_nonzero(x, {.keepdim = true}),
                            argmax(x, {.keepdim = true}), argmin(x, {.keepdim = true})})
        CHECK(y.shape() == kept);
    CHECK(x.sum({.dtype = float64, .explicit_dtype = true}).dtype() == float64);
    CHECK(x.sum({}).shape() == Shape{});
    CHECK(doubles(x.sum({1})) == doubles(sum(x, 1)));
    CHECK(doubles(x.var({0})) == doubles(var(x, 0)));
    CHECK(doubles(x.var({1, 0})) == doubles(var(x)));
    CHECK(x.any({1}).shape() == Shape{2});
    CHECK(x.max({0, 1}, {.keepdim = true}).shape() == kept);
    CHECK(Shape{2, 3, std::size_t(4), 5u}.numel() == 120);
    STATIC_REQUIRE(!std::is_constructible_v<Shape, int, double>);
    STATIC_REQUIRE(!std::is_constructible_v<Shape, int, bool>);
}

TEST_CASE("brackets: integers, ranges, ellipsis, newaxis", "[pleasant]") {
    for (const Device device : devices()) {
        const Tensor x = counting({2, 3, 4}).to(device);
        CHECK(x[{1, 2, 3}].item<double>() == 23);
        CHECK(x[{-1, -1, -1}].item<double>() == 23);
        CHECK(doubles(x[{0, 1}]) == Values{4, 5, 6, 7});
        CHECK(doubles(x[{0, Slice(1, 3), 0}]) == Values{4, 8});
        CHECK(doubles(x[{ellipsis, 1}]) == Values{1, 5, 9, 13, 17, 21});
        CHECK(doubles(x[{1, ellipsis, Slice(0, 4, 3)}]) == Values{12, 15, 16, 19, 20, 23});
        CHECK(doubles(x[{0, 0, Slice(-2)}]) == Values{2, 3});
        CHECK(doubles(x[{0, 0, Slice(0, -1, 2)}]) == Values{0, 2});
        CHECK(x[{newaxis, Slice(), newaxis, 0}].shape() == Shape{1, 2, 1, 4});
        CHECK(x[{ellipsis, newaxis}].shape() == Shape{2, 3, 4, 1});
        CHECK(x[{0, 1, 2, ellipsis}].shape() == Shape{});
        CHECK(x[Slice(1)].shape() == Shape{1, 3, 4});
        CHECK(x[{Slice(5, 9)}].shape() == Shape{0, 3, 4});
        CHECK(x[ellipsis].shape() == x.shape());
        CHECK(x[1].shape() == Shape{3, 4});
        x[{Slice(), 0, Slice(0, 2)}].copy_(zeros({2, 2}));
        CHECK(doubles(x[{Slice(), 0}]) == Values{0, 0, 2, 3, 0, 0, 14, 15});
    }
    const Tensor x = counting({2, 3});
    CHECK_THROWS_WITH((x[{0, 3}]),
                      Contains("index: 3 is out of range for dimension 1 of [2, 3]") && Contains("[-3, 3)"));
    CHECK_THROWS_WITH((x[{Slice(), 3}]), Contains("3 is out of range for dimension 1 of [2, 3]"));
    CHECK_THROWS_WITH((x[{newaxis, -3}]), Contains("-3 is out of range for dimension 0"));
    CHECK_THROWS_WITH((x[{0, 0, 0}]), Contains("3 entries for the 2 dimensions of [2, 3]"));
    CHECK_THROWS_WITH((x[{ellipsis, ellipsis}]), Contains("more than one ellipsis"));
    CHECK_THROWS_WITH((x[Slice(0, 2, 0)]), Contains("step 0"));
    CHECK(kind_of([&] { static_cast<void>(x[{0, 3}]); }) == ErrorKind::shape);
    CHECK_THROWS_AS((Tensor()[{0, 0}]), Error);
}

TEST_CASE("brackets have gradients", "[pleasant]") {
    const Tensor x = counting({3, 4}).set_requires_grad();
    (x[{Slice(0, 3, 2), -1}] * Tensor::from({10, 20})).sum().backward();
    CHECK(doubles(x.grad()) == Values{0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0, 20});
}

TEST_CASE("a loop over a tensor sees its rows", "[pleasant]") {
    const Tensor x = counting({3, 2}).set_requires_grad();
    Tensor total = scalar(0);
    int rows = 0;
    for (const Tensor& row : x) total += row.sum() * double(++rows);
    total.backward();
    CHECK(rows == 3);
    CHECK(doubles(x.grad()) == Values{1, 1, 2, 2, 3, 3});
    for (const Tensor& none : zeros({0, 2})) FAIL(none.to_string());
    const Tensors list(x.begin(), x.end());
    CHECK(list.size() == 3);
    STATIC_REQUIRE(std::ranges::input_range<Tensor>);
    for (const Tensor& row : x.detach()) row.fill_(7);  // views
    CHECK(x.detach()[{2, 1}].item<double>() == 7);
    CHECK_THROWS_WITH(scalar(1).begin() == scalar(1).end(), Contains("0-dim"));
}

TEST_CASE("sequences: arange, linspace, eye", "[pleasant]") {
    for (const Device device : devices()) {
        const TensorOptions whole{.dtype = int64, .device = device}, real{.device = device};
        CHECK(doubles(arange(2, 11, 3, whole)) == Values{2, 5, 8});
        CHECK(doubles(arange(5, 0, -2, whole)) == Values{5, 3, 1});
        CHECK(doubles(linspace(0, 1, 5, real)) == Values{0, 0.25, 0.5, 0.75, 1});
        CHECK(doubles(eye(2, 3, real)) == Values{1, 0, 0, 0, 1, 0});
    }
    CHECK(arange(1, 4).dtype() == int64);
    CHECK(doubles(arange(1, 4)) == Values{1, 2, 3});
    CHECK(arange(3, 3).shape() == Shape{0});
    CHECK(arange(0, 4, 1, {.dtype = float16}).dtype() == float16);
    CHECK(arange(0.0, 1.0, 0.25).dtype() == float32);
    CHECK(doubles(arange(0, 1, 0.25)) == Values{0, 0.25, 0.5, 0.75});
    CHECK(doubles(arange(1.5, 4)) == Values{1.5, 2.5, 3.5});
    CHECK(arange(0.0, 1.0, 0.1).numel() == 10);
    CHECK(arange(0.0, 2.0, 0.5, {.requires_grad = true}).is_leaf());
    CHECK_THROWS_WITH(arange(0, 5, -1), Contains("from 0 to 5 in steps of -1 never ends"));
    CHECK_THROWS_WITH(arange(0, 5, 0), Contains("never ends"));
    CHECK_THROWS_WITH(arange(0.0, INFINITY, 1.0), Contains("must be finite"));
    CHECK_THROWS_WITH(arange(0, 5, 1, {.dtype = boolean}), Contains("boolean"));
    CHECK(arange(5.5).dtype() == float32);
    CHECK(doubles(arange(5.5F)) == Values{0, 1, 2, 3, 4, 5});
    CHECK(doubles(arange(2.5, {.dtype = int64})) == Values{0, 1, 2});
    CHECK(arange(1, 4, {.dtype = float32}).dtype() == float32);
    CHECK(doubles(arange(1.5, 4, {.dtype = float64})) == Values{1.5, 2.5, 3.5});
    CHECK_THROWS_WITH(arange(-1.5), Contains("never ends"));
    CHECK(doubles(linspace(3, 3, 1)) == Values{3});
    CHECK(linspace(0, 1, 0).numel() == 0);
    CHECK(doubles(linspace(-1, 2, 4, {.dtype = int64})) == Values{-1, 0, 1, 2});
    const Values thirds = doubles(linspace(-1, 1, 1001, {.dtype = float64}));
    for (std::size_t i = 0; i < thirds.size(); ++i) CHECK(thirds[i] == -thirds[1000 - i]);
    CHECK_THROWS_WITH(linspace(0, 1, -1), Contains("steps is -1"));
    CHECK(doubles(eye(2)) == Values{1, 0, 0, 1});
    CHECK(eye(2, {.dtype = boolean}).dtype() == boolean);
    CHECK(eye(0).shape() == Shape{0, 0});
    CHECK_THROWS_WITH(eye(-1), Contains("-1 rows"));
}

TEST_CASE("a tensor of a state that ends outlives it", "[pleasant]") {
    const nn::Linear net(2, 3);
    const Tensor& weight = net.state_dict()["weight"];
    const Tensor& bias = net.state_dict().at("bias");
    CHECK(weight.shape() == Shape{3, 2});
    CHECK(bias.shape() == Shape{3});
    const StateDict state = net.state_dict();
    STATIC_REQUIRE(std::is_same_v<decltype(state["weight"]), const Tensor&>);
    CHECK(&state["weight"] == state.find("weight"));
    CHECK_THROWS_WITH(net.state_dict()["wieght"], Contains("no \"wieght\""));
}

TEST_CASE("sequences: tensors like another", "[pleasant]") {
    const Tensor x = zeros({2, 3}, {.dtype = float16}), n = zeros({4}, {.dtype = int32});
    CHECK(doubles(full_like(x, 0.5)) == Values(6, 0.5));
    CHECK(full_like(n, 3).dtype() == int32);
    for (const Tensor& y : {rand_like(x), randn_like(x)}) {
        CHECK(y.shape() == x.shape());
        CHECK(y.dtype() == float16);
        CHECK(y.to_vector<float>() != x.to_vector<float>());
    }
    const Values drawn = doubles(randint_like(n, 5, 7));
    for (const double value : drawn) CHECK((value == 5 || value == 6));
    CHECK_THROWS_AS(randn_like(n), Error);
}
