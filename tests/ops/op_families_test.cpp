// The ops of reduce_ops.h, sort_ops.h, shape_ops.h, pointwise_ops.h, product_ops.h and loss_ops.h: values and
// gradients of PyTorch, dtypes, 0-dim and empty inputs, order of equal elements and NaN.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "mezzo/mezzo.h"
#include "tests/reference/ops.h"
#include "tests/support/op_cases.h"

using namespace mezzo;
using namespace mezzo::test;

namespace {

using Integers = std::vector<std::int64_t>;

// The formula waves() of tools/reference_ops.py.
Tensor waves(const Shape& shape, double phase, double scale = 1) {
    std::vector<double> values;
    for (std::int64_t i = 0; i < shape.numel(); ++i)
        values.push_back(scale * std::sin(1.3 * double(i) + phase));
    return Tensor::from(values, shape);
}

Tensor of(const std::vector<double>& values, const Shape& shape) { return Tensor::from(values, shape); }
Tensor of(const Integers& values, const Shape& shape) { return Tensor::from(values, shape); }
Tensor of(const Integers& values) { return Tensor::from(values, {std::int64_t(values.size())}); }
Integers integers(const Tensor& x) { return x.to_vector<std::int64_t>(); }

// The result of f, followed by the gradients of sum(result * waves) with respect to all inputs.
template <class F> std::vector<double> with_gradients(const F& f, const Tensors& inputs) {
    Tensors leaves;
    for (const Tensor& x : inputs) leaves.push_back(x.clone().set_requires_grad());
    const Tensor y = f(leaves);
    std::vector<double> values = doubles(y);
    if (!y.requires_grad()) return values;
    sum(y * waves(y.shape(), 0.25)).backward();
    for (const Tensor& x : leaves) {
        const std::vector<double> more = doubles(x.grad().defined() ? x.grad() : zeros_like(x));
        values.insert(values.end(), more.begin(), more.end());
    }
    return values;
}

#define AGREES(name, call, ...)                                                                    \
    CHECK(difference(with_gradients([&](const Tensors& x) { return call; }, Tensors{__VA_ARGS__}), \
                     reference::name, {1e-10, 1e-12}) == "")

}  // namespace

TEST_CASE("op families: reductions agree with PyTorch", "[op_families]") {
    const Tensor a = waves({3, 4}, 0.5),
                 with_zeros = of(std::vector<double>{1, 0, -2, 3, 0, 2, 0, 1.5, 1, -1, 2, 0.5}, {3, 4});
    AGREES(prod_with_zeros, prod(x[0], {1}), with_zeros);
    AGREES(prod_of_all, prod(x[0]), a);
    AGREES(cumprod_with_zeros, cumprod(x[0], 1), with_zeros);
    AGREES(cumprod_first, cumprod(x[0], 0), with_zeros);
    AGREES(cumsum, cumsum(x[0], 1), a);
    AGREES(var, var(x[0], {1}), a);
    AGREES(var_biased, var(x[0], {0, 1}, {.correction = 0}), a);
    AGREES(std, mezzo::std(x[0], {0}, {.correction = 2}), a);
    const std::vector<double> q{0.1, 0.5, 0.8};
    AGREES(quantile_linear, quantile(x[0], q, {.dim = 1}), a);
    AGREES(quantile_lower, quantile(x[0], q, {.dim = 1, .interpolation = Interpolation::lower}), a);
    AGREES(quantile_higher, quantile(x[0], q, {.dim = 1, .interpolation = Interpolation::higher}), a);
    AGREES(quantile_nearest, quantile(x[0], q, {.dim = 1, .interpolation = Interpolation::nearest}), a);
    AGREES(quantile_midpoint, quantile(x[0], q, {.dim = 1, .interpolation = Interpolation::midpoint}), a);
    AGREES(quantile_of_all, quantile(x[0], 0.37), a);
    AGREES(softmin, softmin(x[0], 0), a);
}

TEST_CASE("op families: element-wise functions agree with PyTorch", "[op_families]") {
    const Tensor a = waves({3, 4}, 0.5), b = waves({3, 4}, 1.5), c = waves({4}, 2.5);
    AGREES(remainder, remainder(x[0], x[1]), a * 5.0, b);
    AGREES(atan2, atan2(x[0], x[1]), a, b);
    AGREES(mish, mish(x[0]), a * 4.0);
    AGREES(elu, elu(x[0], 1.5), a * 4.0);
    AGREES(leaky_relu, leaky_relu(x[0], 0.2), a);
    AGREES(hardtanh, hardtanh(x[0], -0.5, 0.25), a);
    AGREES(glu, glu(x[0]), a);
    AGREES(lerp, lerp(x[0], x[1], x[2]), a, b, c);
    AGREES(addcmul, addcmul(x[0], x[1], x[2], 0.5), a, b, c);
    AGREES(addcdiv, addcdiv(x[0], x[1], x[2], -2), a, b, c);
}

TEST_CASE("op families: order and arrangement agree with PyTorch", "[op_families]") {
    const Tensor a = waves({3, 4}, 0.5), b = waves({3, 4}, 1.5), c = waves({4}, 2.5),
                 d = waves({2, 3, 4}, 0.1);
    AGREES(sort_descending, sort(x[0], 0, {.descending = true}).values, a);
    AGREES(topk, topk(x[0], 2, 1).values, a);
    AGREES(kthvalue, kthvalue(x[0], 3, 1).values, a);
    AGREES(searchsorted, searchsorted(sort(x[0], 1).values, x[1], {.right = true}), a, b);
    AGREES(tril, tril(x[0], -1), d);
    AGREES(triu, triu(x[0], 1), d);
    AGREES(diag, diag(x[0], -1), c);
    AGREES(diag_of, diag(x[0], 2), a);
    AGREES(roll, roll(x[0], {1, -2}, {0, 1}), a);
    AGREES(flip, flip(x[0], {0, 1}), a);
    AGREES(repeat, repeat(x[0], {2, 1, 2}), a);
}

TEST_CASE("op families: products and distances agree with PyTorch", "[op_families]") {
    const Tensor a = waves({3, 4}, 0.5), b = waves({3, 4}, 1.5), c = waves({4}, 2.5);
    const Tensor with_zeros = of(std::vector<double>{1, 0, -2, 3, 0, 2, 0, 1.5, 1, -1, 2, 0.5}, {3, 4});
    AGREES(addmm, addmm(x[0], x[1], x[2], {.beta = 0.5, .alpha = 2}), waves({3}, 0.1), a, waves({4, 3}, 1.1));
    AGREES(einsum, einsum("abc, ...cd, ad -> b...a", x), waves({2, 3, 4}, 0.1), waves({5, 4, 2}, 1.1),
           waves({2, 2}, 2.1));
    AGREES(einsum_implied, einsum("Ba...,a...", x), waves({2, 3, 4}, 0.1), waves({3, 4}, 1.1));
    AGREES(cosine_similarity, cosine_similarity(x[0], x[1]), a, c);
    AGREES(pairwise_distance, pairwise_distance(x[0], x[1], {.p = 3}), a, b);
    AGREES(pairwise_distance_max, pairwise_distance(x[0], x[1], {.p = INFINITY, .keepdim = true}), a, b);
    AGREES(normalize, normalize(x[0], 3, 0), with_zeros);
}

TEST_CASE("op families: losses agree with PyTorch", "[op_families]") {
    const Tensor a = waves({3, 4}, 0.5), b = waves({3, 4}, 1.5), positive = abs(a) + 0.1;
    const Tensor signs = of(std::vector<double>{1, -1, 1}, {3}), target = of(Integers{2, -100, 0});
    const Tensor weight = of(std::vector<double>{0.5, 2, 1, 0.25}, {4});
    AGREES(kl_div, kl_div(x[0], x[1], {.batch_mean = true}), a, positive);
    AGREES(kl_div_log, kl_div(x[0], x[1], {.log_target = true}), a, b);
    AGREES(huber, huber_loss(x[0], x[1], {.delta = 0.3}), a, b);
    AGREES(hinge, hinge_embedding_loss(x[0], signs.unsqueeze(1), {.margin = 0.5}), a);
    AGREES(cosine_embedding, cosine_embedding_loss(x[0], x[1], signs, {.margin = -0.5}), a, b);
    AGREES(triplet, triplet_margin_loss(x[0], x[1], x[2], {.swap = true, .reduction = Reduction::none}), a, b,
           flip(b, {0}) * 0.5);
    AGREES(cross_entropy_weights, cross_entropy(x[0], target, {.label_smoothing = 0.1, .weight = weight}), a);
    AGREES(cross_entropy_none, cross_entropy(x[0], target, {.reduction = Reduction::none, .weight = weight}),
           a);
    AGREES(cross_entropy_soft, cross_entropy(x[0], x[1], {.label_smoothing = 0.2, .weight = weight}), a,
           positive);
    AGREES(cross_entropy_leading,
           cross_entropy(x[0], of(Integers{0, 1, 3, 2, 1, 1}, {3, 2}), {.weight = weight}),
           waves({3, 2, 4}, 0.7));
    AGREES(nll_weights, nll_loss(x[0], target, {.weight = weight}), a);
}

TEST_CASE("op families: integers and booleans", "[op_families]") {
    const Tensor i = Tensor::from(std::vector<std::int32_t>{3, 0, -7, 3}, {4}), b = gt(i, 0.0);
    CHECK(prod(i).dtype() == int64);
    CHECK(cumsum(b, 0).dtype() == int64);
    CHECK(integers(cumsum(i, 0)) == Integers{3, 3, -4, -1});
    CHECK(cumprod(i, 0, float64).dtype() == float64);
    CHECK(integers(argsort(i)) == Integers{2, 1, 0, 3});
    CHECK(integers(sort(i, 0, {.descending = true}).values) == Integers{3, 3, 0, -7});
    CHECK(integers(remainder(i, 4)) == Integers{3, 0, 1, 3});
    CHECK(integers(remainder(i, -4)) == Integers{-1, 0, -3, -1});
    CHECK(remainder(i, 2.5).dtype() == float32);
    CHECK(integers(floor(i)) == integers(i));
    CHECK(integers(argmin(Tensor::from(std::vector<std::int64_t>{5, INT64_MIN, INT64_MIN}, {3}), 0)) ==
          Integers{1});
    CHECK(integers(argmin(Tensor::from(std::vector<std::uint8_t>{200, 0, 7}, {3}), 0)) == Integers{1});
    ByDecomposition composed;
    CHECK(integers(argmin(Tensor::from(std::vector<std::int64_t>{5, INT64_MIN, INT64_MIN}, {3}), 0)) ==
          Integers{1});
    CHECK(integers(argmin(Tensor::from(std::vector<std::uint8_t>{200, 0, 7}, {3}), 0)) == Integers{1});
}

TEST_CASE("op families: integers beside float64 keep their digits", "[op_families]") {
    const Tensor n = full({2}, 16777217, {.dtype = int64}), one = ones({2}, {.dtype = float64});
    CHECK(div(n, one).to_vector<double>() == std::vector<double>(2, 16777217));
    CHECK(div(one, n).to_vector<double>() == std::vector<double>(2, 1 / 16777217.0));
    CHECK(pow(n, one).to_vector<double>() == std::vector<double>(2, 16777217));
    CHECK(pow(n, scalar(1, {.dtype = float64})).to_vector<double>() == std::vector<double>(2, 16777217));
    const Tensor x = ones({2}, {.dtype = float64}).set_requires_grad();
    CHECK(autograd::grad({div(n, x).sum()}, {x})[0].to_vector<double>() == std::vector<double>(2, -16777217));
    CHECK(div(n, n).dtype() == float32);
}

TEST_CASE("op families: tensors without dimensions or elements", "[op_families]") {
    const Tensor one = scalar(3), none = zeros({0}), no_rows = zeros({0, 4});
    CHECK(prod(one).item<float>() == 3);
    CHECK(prod(none).item<float>() == 1);
    CHECK(std::isnan(var(one).item<float>()));
    CHECK(std::isnan(var(none).item<float>()));
    CHECK(var(one, {}, {.correction = 0}).item<float>() == 0);
    CHECK_FALSE(any(none).item<bool>());
    CHECK(all(none).item<bool>());
    CHECK(cumsum(one, 0).shape() == Shape{});
    CHECK(cumsum(no_rows, 0).shape() == no_rows.shape());
    CHECK(sort(one).values.item<float>() == 3);
    CHECK(sort(one).indices.item<std::int64_t>() == 0);
    CHECK(topk(one, 1).values.shape() == Shape{});
    CHECK(kthvalue(one, 1).values.item<float>() == 3);
    CHECK(argmin(one).item<std::int64_t>() == 0);
    CHECK(sort(no_rows, 0).values.shape() == no_rows.shape());
    CHECK(topk(no_rows, 2).values.shape() == Shape{0, 2});
    CHECK(quantile(one, 0.3).item<float>() == 3);
    CHECK(searchsorted(none, Tensor::from({1, 2})).to_vector<int>() == std::vector<int>{0, 0});
    CHECK(unique(none, {.inverse = true, .counts = true}).counts.shape() == Shape{0});
    CHECK(isin(one, none).item<bool>() == false);
    CHECK(bincount(zeros({0}, {.dtype = int64}), {}, 3).shape() == Shape{3});
    CHECK(nonzero(one).shape() == Shape{1, 0});
    CHECK(nonzero(no_rows).shape() == Shape{0, 2});
    CHECK(masked_select(one, gt(one, 0.0)).shape() == Shape{1});
    CHECK(diag(none).shape() == Shape{0, 0});
    CHECK(diag(none, 2).shape() == Shape{2, 2});
    CHECK(diag(zeros({2, 2}), 5).shape() == Shape{0});
    CHECK(tril(no_rows).shape() == no_rows.shape());
    CHECK(flip(none, {0}).shape() == none.shape());
    CHECK(roll(none, 3).shape() == none.shape());
    CHECK(repeat(one, {2, 3}).shape() == Shape{2, 3});
    CHECK(repeat(none, {4}).shape() == none.shape());
    CHECK(repeat(Tensor::from({1, 2}), {0}).shape() == none.shape());
    CHECK(split(none, 2).size() == 1);
    CHECK(unbind(none).empty());
    CHECK(chunk(no_rows, 2).size() == 2);  // as in PyTorch
    const Tensor rows = ones({2, 4}, {.dtype = float64});
    CHECK(cat({none, rows, none, rows}).shape() == Shape{4, 4});
    CHECK(cat({none, rows}, 1).dtype() == float64);
    CHECK(cat({none, ones({3}, {.dtype = int64})}).dtype() == float32);
    CHECK(dot(none, none).item<float>() == 0);
    CHECK(einsum("i,i->", {none, none}).item<float>() == 0);
    CHECK(one_hot(zeros({0}, {.dtype = int64}), 3).shape() == Shape{0, 3});
    CHECK(cross_entropy(Tensor::from({1, 2}), scalar(0, {.dtype = int64})).shape() == Shape{});
    CHECK(std::isnan(
        cross_entropy(no_rows, zeros({0}, {.dtype = int64}), {.weight = ones({4})}).item<float>()));
}

// The gradient of a mean is an expanded tensor; adding to it must work even if it has no elements.
TEST_CASE("op families: an expanded tensor without elements may be written to", "[op_families]") {
    const Tensor x = zeros({1, 0}).expand({5, 0});
    CHECK_NOTHROW(x.add_(zeros({5, 0})));
    CHECK_THROWS_AS(zeros({1, 2}).expand({5, 2}).add_(zeros({5, 2})), Error);
}

TEST_CASE("op families: NaN, infinities, signed zeros and equal elements have an order", "[op_families]") {
    const Tensor x = of(std::vector<double>{NAN, 1, -INFINITY, 0.0, -0.0, INFINITY, -NAN, 1}, {8});
    for (const Device device : devices()) {
        const Tensor there = x.to(device);
        CHECK(integers(searchsorted(sort(there).values, there)) == Integers{6, 3, 0, 1, 1, 5, 6, 3});
        CHECK(integers(searchsorted(sort(there).values, there, {.right = true})) ==
              Integers{8, 5, 1, 3, 3, 6, 8, 5});
        CHECK(integers(argsort(there, 0, {.descending = true})) == Integers{0, 6, 5, 1, 7, 3, 4, 2});
        CHECK(integers(argsort(there)) == Integers{2, 3, 4, 1, 7, 5, 0, 6});
        CHECK(integers(argmin(there)) == Integers{0});
        const Tensor square = Tensor::from({1, 7, -3, 2, -3, 7}, {2, 3}).to(device), turned = square.t();
        for (const Dtype dtype : {float32, float64, float16, int64, int32}) {
            const Tensor y = square.to(dtype);
            CHECK(integers(argmax(y)) == Integers{1});
            CHECK(integers(argmin(y)) == Integers{2});
            CHECK(integers(argmax(y, 1)) == Integers{1, 2});
            CHECK(argmax(y, -1, {.keepdim = true}).shape() == Shape{2, 1});
            CHECK(argmin(y, 0, {.keepdim = true}).shape() == Shape{1, 3});
        }
        CHECK(integers(argmax(turned)) == Integers{2});  // row-major, whatever the strides
        CHECK(integers(argmin(turned)) == Integers{3});
        CHECK(argmax(square, {.keepdim = true}).shape() == Shape{1, 1});
        CHECK(argmax(square.select(0, 0).select(0, 0), {.keepdim = true}).shape() == Shape{});
        CHECK(integers(argmax(x.reshape({2, 4}).to(device))) == Integers{0});  // NaN
        CHECK(integers(cumsum(of(Integers{1, INT64_MAX, 5}).to(device), 0)) ==
              Integers{1, INT64_MIN, INT64_MIN + 5});
    }
    for (const Dtype dtype : {float64, float32, float16, bfloat16}) {
        CAPTURE(name(dtype));
        CHECK(integers(argsort(x.to(dtype))) == Integers{2, 3, 4, 1, 7, 5, 0, 6});
        CHECK(integers(argsort(x.to(dtype), 0, {.descending = true})) == Integers{0, 6, 5, 1, 7, 3, 4, 2});
        CHECK(integers(topk(x.to(dtype), 1).indices) == Integers{0});
        CHECK(integers(topk(x.to(dtype), 1, 0, {.largest = false}).indices) == Integers{2});
    }
    CHECK(integers(argmin(x)) == Integers{0});
    CHECK(std::isnan(quantile(x, 0.5).item<double>()));
    CHECK(integers(searchsorted(of(std::vector<double>{0, 1, 2}, {3}), x)) ==
          Integers{3, 1, 0, 0, 0, 3, 3, 1});
    CHECK(integers(isnan(x)) == Integers{1, 0, 0, 0, 0, 0, 1, 0});
    CHECK(integers(isinf(x)) == Integers{0, 0, 1, 0, 0, 1, 0, 0});
    CHECK(unique(x).values.size(0) == 6);
    CHECK(integers(isin(x, x)) == Integers{0, 1, 1, 1, 1, 1, 0, 1});
    CHECK(any(of(std::vector<double>{0, NAN}, {2})).item<bool>());
    CHECK(integers(round(of(std::vector<double>{0.5, 1.5, -2.5, 2.6}, {4}))) == Integers{0, 2, -2, 3});
}

// On the CPU lines long enough for the radix sort, with keys that differ in all bytes or in few; on CUDA
// lines for the sorting network.
TEST_CASE("op families: long lines are sorted", "[op_families]") {
    manual_seed(3);
    for (const Device device : devices()) {
        const std::int64_t n = device == cpu_device ? 20000 : 2100;
        for (const Tensor& given :
             {randn({2, n}, {.dtype = float64}), randn({2, n}) * 1e20, randint(-50, 50, {2, n}),
              randint(0, 200, {2, n}, {.dtype = uint8}), randn({2, n}).to(bfloat16)}) {
            CAPTURE(name(device.type()), name(given.dtype()));
            const Tensor x = given.to(device);
            const Integers order = integers(argsort(x)),
                           across = integers(argsort(x.t(), 0, {.descending = true}));
            const std::vector<double> values = doubles(x);
            for (std::int64_t row = 0; row < 2; ++row) {
                const auto value = [&](std::int64_t i) { return values[std::size_t(row * n + i)]; };
                Integers up(std::size_t(n), 0);
                std::iota(up.begin(), up.end(), 0);
                Integers down = up;
                std::stable_sort(up.begin(), up.end(), [&](auto a, auto b) { return value(a) < value(b); });
                std::stable_sort(down.begin(), down.end(),
                                 [&](auto a, auto b) { return value(a) > value(b); });
                CHECK(std::equal(up.begin(), up.end(), order.begin() + row * n));
                bool same = true;
                for (std::int64_t i = 0; i < n; ++i)
                    same = same && across[std::size_t(2 * i + row)] == down[std::size_t(i)];
                CHECK(same);
                CHECK(integers(topk(x.select(0, row), 100, 0, {.largest = false}).indices) ==
                      Integers(up.begin(), up.begin() + 100));
            }
        }
    }
}

TEST_CASE("op families: a large mean takes no digits from the variance", "[op_families]") {
    manual_seed(4);
    const Tensor noise = randn({300, 500}, {.dtype = float64}), x = noise + 1e8;
    for (const Axes& axes : {Axes{0}, Axes{1}, Axes{}}) {
        const double expected = doubles(var(noise, axes))[0];
        CHECK(doubles(var(x, axes))[0] == Approx(expected).epsilon(1e-6));
        CHECK(doubles(var((noise + 1000.0).to(float32), axes))[0] == Approx(expected).epsilon(1e-4));
    }
    const Tensor slope = arange(200000, {.dtype = float64});  // blocks whose means differ
    CHECK(var(slope).item<double>() == Approx(200000.0 * 200001 / 12).epsilon(1e-12));
    CHECK(var(slope.reshape({2000, 100}), {0}).select(0, 0).item<double>() ==
          Approx(1e4 * 2000 * 2001 / 12).epsilon(1e-12));
    // The sum leaves the range of float32, but the deviation does not.
    const Tensor large = abs(randn({1000}, {.dtype = float64})) * 1e37;
    CHECK(mezzo::std(large.to(float32)).item<float>() ==
          Approx(mezzo::std(large).item<double>()).epsilon(1e-5));
    CHECK(std::isfinite(
        mezzo::std(full({4, 4}, 60000, {.dtype = float16}) * tril(ones({4, 4}, {.dtype = float16})))
            .item<float>()));
}

TEST_CASE("op families: results do not depend on the number of threads", "[op_families]") {
    manual_seed(5);
    const Tensor x = randn({70, 3000}), flat = randn({200000});
    const auto all_results = [&] {
        std::vector<double> v;
        for (const Tensor& y :
             {var(x, {0}), var(flat), prod(x * 0.01 + 1.0, {1}), cumsum(x, 0), cumsum(x, 1), cumprod(x, 0),
              cast(argsort(x, 0), float64), cast(topk(x, 7).indices, float64)}) {
            const std::vector<double> more = doubles(y);
            v.insert(v.end(), more.begin(), more.end());
        }
        return v;
    };
    const int before = num_threads();
    set_num_threads(1);
    const auto alone = all_results();
    set_num_threads(3);
    CHECK(alone == all_results());
    set_num_threads(before);
}

TEST_CASE("op families: shapes that values tell", "[op_families]") {
    const Tensor x = of(Integers{3, 1, 3, 7, 1, 3}, {2, 3});
    const Unique u = unique(x, {.inverse = true, .counts = true});
    CHECK(integers(u.values) == Integers{1, 3, 7});
    CHECK(integers(u.inverse) == Integers{1, 0, 1, 2, 0, 1});
    CHECK(u.inverse.shape() == x.shape());
    CHECK(integers(u.counts) == Integers{2, 3, 1});
    CHECK(integers(bincount(x.flatten())) == Integers{0, 2, 0, 3, 0, 0, 0, 1});
    CHECK(doubles(bincount(of(Integers{1, 0, 1}), Tensor::from({0.5, 2, 4}))) == std::vector<double>{2, 4.5});
    CHECK(bincount(of(Integers{1}), of(Integers{2})).dtype() == float64);
    CHECK(integers(nonzero(of(Integers{0, 5, 0, 0, 0, -1}, {3, 2}))) == Integers{0, 1, 2, 1});
    CHECK(doubles(masked_select(Tensor::from({1, 2, 3}), gt(Tensor::from({1, -1}, {2, 1}), 0.0))) ==
          std::vector<double>{1, 2, 3});
    CHECK(integers(repeat_interleave(of(Integers{5, 6, 7}), of(Integers{2, 0, 1}), 0)) == Integers{5, 5, 7});
    CHECK(integers(one_hot(of(Integers{1, 0}))) == Integers{0, 1, 1, 0});
    CHECK(one_hot(of(Integers{1, 0, 2}, {3, 1}), 4).shape() == Shape{3, 1, 4});
    CHECK(integers(isin(x, of(Integers{7, 1}))) == Integers{0, 1, 0, 1, 1, 0});
}

TEST_CASE("op families: multinomial draws in proportion to the weights", "[op_families]") {
    manual_seed(6);
    const Tensor weights = Tensor::from({0, 1, 3, 0, 4, 0}, {6});
    const std::vector<double> counts =
        doubles(bincount(multinomial(weights, 80000, {.replacement = true}), {}, 6));
    for (int i = 0; i < 6; ++i)
        CHECK(std::abs(counts[std::size_t(i)] - 10000 * doubles(weights)[std::size_t(i)]) < 500);
    const Tensor rows = multinomial(repeat(weights, {20000, 1}), 3);
    CHECK(rows.shape() == Shape{20000, 3});
    CHECK(integers(unique(rows).values) == Integers{1, 2, 4});
    CHECK(all(eq(sort(rows).values, of(Integers{1, 2, 4}))).item<bool>());
    const Tensor huge =
        multinomial(full({3}, 1e308, {.dtype = float64}), 1000, {.replacement = true});  // the sum is inf
    CHECK(integers(unique(huge).values) == Integers{0, 1, 2});
    const std::vector<double> first = doubles(bincount(rows.select(1, 0), {}, 6));
    CHECK(std::abs(first[1] - 2500) < 200);
    CHECK(std::abs(first[4] - 10000) < 300);
}

TEST_CASE("op families: parts are views and copies are not", "[op_families]") {
    const Tensor x = arange(10, {.dtype = float32}).clone();
    split(x, 4)[1].fill_(-1);
    unbind(x)[0].fill_(9);
    chunk(x, 5)[4].zero_();
    CHECK(integers(x) == Integers{9, 1, 2, 3, -1, -1, -1, -1, 0, 0});
    for (const Tensor& y : {flip(x, {}), roll(x, 0), repeat(x, {1}), repeat_interleave(x, 1, 0)}) y.zero_();
    CHECK(integers(x) == Integers{9, 1, 2, 3, -1, -1, -1, -1, 0, 0});
    CHECK(chunk(x, 4).size() == 4);
    CHECK(chunk(x, 6).size() == 5);  // as in PyTorch
}

TEST_CASE("op families: autocast as in PyTorch's lists", "[op_families]") {
    const Tensor x = ones({4, 4}), low = x.to(float16);
    amp::Autocast scope({.dtype = float16});
    for (const Tensor& t : {x, low}) {
        CHECK(bmm(t.unsqueeze(0), t.unsqueeze(0)).dtype() == float16);
        CHECK(addmm(x, t, low).dtype() == float16);
        CHECK(einsum("ij,jk", {t, low}).dtype() == float16);
        CHECK(einsum("ij->j", {t}).dtype() == float32);  // a sum alone
        CHECK(prod(t).dtype() == float32);
        CHECK(cumsum(t, 0).dtype() == float32);
        CHECK(cumprod(t, 0).dtype() == float32);
        CHECK(cosine_similarity(t, low).dtype() == float32);
        CHECK(normalize(t).dtype() == float32);
        CHECK(kl_div(t, low).dtype() == float32);
        CHECK(huber_loss(t, t).dtype() == float32);
        CHECK(var(t).dtype() == t.dtype());
        CHECK(mish(t).dtype() == t.dtype());
    }
    CHECK(einsum("ij->", {ones({300, 300})}).item<float>() == 90000);
    CHECK(dot(low[0], x[0]).dtype() == float32);
    CHECK(dot(low[0], low[0]).dtype() == float16);
    CHECK(atan2(low, x).dtype() == float32);
    CHECK(addcmul(low, low, x).dtype() == float32);
    CHECK(sum(x, {}, {.dtype = float64, .explicit_dtype = true}).dtype() == float64);
    CHECK(softmax(x, 0, float16).dtype() == float16);
    CHECK(cumsum(x, 0, float16).dtype() == float16);
}

TEST_CASE("op families: integers limited to fractional bounds stay between them", "[op_families]") {
    for (const Device device : devices())
        for (const Dtype dtype : {int32, int64}) {
            const Tensor x = arange(7, {.dtype = dtype, .device = device}) - 3;
            CHECK(integers(clamp(x, 0.5, 2.5)) == Integers{1, 1, 1, 1, 1, 2, 2});
            CHECK(integers(clamp(x, -2.5, -0.5)) == Integers{-2, -2, -1, -1, -1, -1, -1});
            CHECK(integers(hardtanh(x, -1.9, 1.1)) == Integers{-1, -1, -1, 0, 1, 1, 1});
            CHECK(integers(clamp(x, -INFINITY, 1.5)) == Integers{-3, -2, -1, 0, 1, 1, 1});
            CHECK(integers(clamp(x, -1e300, INFINITY)) == integers(x));
            CHECK_THROWS_WITH(clamp(x, 0.2, 0.8),
                              Catch::Contains("clamp: no integer lies between low 0.2 and high"));
            CHECK_THROWS_AS(hardtanh(x, 1.2, 1.8), Error);
        }
    const Tensor bytes = arange(4, {.dtype = uint8});
    CHECK(integers(clamp(bytes, 0.1, 9)) == Integers{1, 1, 2, 3});
    CHECK_THROWS_AS(hardtanh(bytes, 255.5, 400), Error);
    CHECK_THROWS_AS(clamp(bytes, -9, -0.5), Error);
}

TEST_CASE("op families: gradients beside infinity, NaN and 0", "[op_families]") {
    for (const Device device : devices())
        for (const Dtype dtype : {float32, float64}) {
            const auto leaf = [&](const std::vector<double>& values) {
                return tensor_of(values, {std::int64_t(values.size())}, dtype, device).set_requires_grad();
            };
            const auto gradient = [](const Tensor& y, const Tensor& x) {
                sum(y).backward();
                return doubles(x.grad());
            };
            const Tensor a = leaf({100, INFINITY, -100});
            CHECK(doubles(logsumexp(a, {0})) == std::vector<double>{INFINITY});
            const std::vector<double> beside = gradient(logsumexp(a, {0}), a);
            CHECK(beside[0] == 0);
            CHECK(std::isnan(beside[1]));
            CHECK(beside[2] == 0);
            const Tensor none = leaf({-INFINITY, -INFINITY});
            CHECK(doubles(logsumexp(none, {0})) == std::vector<double>{-INFINITY});
            CHECK(gradient(logsumexp(none, {0}), none) == std::vector<double>{0, 0});
            const Tensor q = leaf({1, NAN, 2});
            CHECK(gradient(quantile(q, 0.5), q) == std::vector<double>{0, 1, 0});
            const Tensor clean = leaf({1, 3, 2});
            CHECK(gradient(quantile(clean, 0.5), clean) == std::vector<double>{0, 0, 1});
            const Tensor base = leaf({0, 0, 0, 2}), e = leaf({-1, 0, 2, -1});
            const std::vector<double> by_exponent = gradient(pow(base, e), e);
            CHECK(by_exponent[0] == -INFINITY);
            CHECK(by_exponent[1] == 0);
            CHECK(by_exponent[2] == 0);
            CHECK(by_exponent[3] == Approx(std::log(2.0) / 2));
            for (const double alpha : {double(INFINITY), 1e300}) {
                if (dtype == float64 && std::isfinite(alpha)) continue;
                const Tensor x = leaf({0, 1, -1e4});
                CHECK(doubles(elu(x, alpha)) == std::vector<double>{0, 1, -INFINITY});
                CHECK(doubles(leaky_relu(x, alpha)) == std::vector<double>{0, 1, -INFINITY});
                const std::vector<double> slopes = gradient(elu(x, alpha), x);
                CHECK(slopes[1] == 1);
                CHECK(slopes[2] == 0);
            }
        }
}

TEST_CASE("op families: remainder of a small number by a large one", "[op_families]") {
    for (const Device device : devices())
        for (const Dtype dtype : {float32, float64, bfloat16})
            for (const double divisor : {1.0, 1e10, 1e20, 1e30, -1e20}) {
                const double b = doubles(tensor_of({divisor}, {1}, dtype))[0], tiny = std::abs(b) * 0x1p-70;
                const Tensor x = tensor_of({-tiny, tiny}, {2}, dtype, device);
                const std::vector<double> want =
                    b > 0 ? std::vector<double>{b, tiny} : std::vector<double>{-tiny, b};
                CHECK(doubles(remainder(x, b)) == want);
                CHECK(doubles(remainder(x, full_like(x, b))) == want);
            }
}
