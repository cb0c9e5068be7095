// Views: their shared storage, copies by reshape, and writes through views.
#include <catch2/catch.hpp>

#include "mezzo/autograd.h"
#include "mezzo/image_ops.h"
#include "mezzo/reduce_ops.h"
#include "mezzo/shape_ops.h"
#include "tests/support/support.h"

using namespace mezzo;
using namespace mezzo::test;
using Catch::Matchers::Contains;

namespace {

Tensor counting(const Shape& shape) { return arange(shape.numel()).to(float32).reshape(shape); }
bool shares(const Tensor& a, const Tensor& b) { return a->storage == b->storage; }
using Values = std::vector<double>;

}  // namespace

TEST_CASE("views share storage and see writes", "[views]") {
    const Tensor x = counting({2, 3, 4}).clone();
    const Tensor row = x.select(0, 1).select(0, -1), part = x.slice(2, 1, 4, 2), turned = x.transpose(0, 2);
    for (const Tensor& view :
         {row, part, turned, x.unsqueeze(0), x.reshape({6, 4}), x.expand({5, 2, 3, 4})}) {
        CHECK(shares(view, x));
        CHECK(view.is_view());
    }
    const std::uint64_t version = x.version();
    x.fill_(7);
    CHECK(x.version() > version);
    CHECK(row.version() == x.version());
    CHECK(doubles(row) == Values(4, 7));
    part.fill_(0);
    CHECK(doubles(x.select(0, 0).select(0, 0)) == Values{7, 0, 7, 0});
    turned.copy_(counting({4, 3, 2}));
    CHECK(doubles(x.select(0, 0).select(0, 0)) == Values{0, 6, 12, 18});
}

TEST_CASE("shapes and strides of views", "[views]") {
    const Tensor x = counting({2, 3, 4});
    CHECK(x.permute({2, 0, 1}).shape() == Shape{4, 2, 3});
    CHECK(x.permute({2, 0, 1}).strides() == Strides{1, 12, 4});
    CHECK(x.transpose(-1, 0).shape() == Shape{4, 3, 2});
    CHECK(x.slice(1, -2, 100).shape() == Shape{2, 2, 4});
    CHECK(x.slice(1, 2, 1).shape() == Shape{2, 0, 4});
    CHECK(x.slice(2, 0, 4, 3).strides() == Strides{12, 4, 3});
    CHECK(x[1].shape() == Shape{3, 4});
    CHECK(x.unsqueeze(-1).shape() == Shape{2, 3, 4, 1});
    CHECK(x.unsqueeze(1).squeeze(1).shape() == x.shape());
    CHECK(x.squeeze(0).shape() == x.shape());
    CHECK(x.flatten(1).shape() == Shape{2, 12});
    CHECK(x.flatten(0, 1).shape() == Shape{6, 4});
    CHECK(scalar(1).flatten().shape() == Shape{1});
    CHECK(x.expand({5, -1, -1, 4}).shape() == Shape{5, 2, 3, 4});
    CHECK(x.expand({5, 2, 3, 4}).strides() == Strides{0, 12, 4, 1});
    CHECK(x.reshape({-1, 8}).shape() == Shape{3, 8});
    CHECK(zeros({0, 3}).reshape({3, 0, 2}).shape() == Shape{3, 0, 2});
    CHECK(counting({3, 4}).t().strides() == Strides{1, 4});
}

TEST_CASE("flatten of a 0-dim tensor knows dimensions 0 and -1 alone", "[views]") {
    CHECK(ones({}).flatten(0, -1).shape() == Shape{1});
    CHECK_THROWS_AS(ones({}).flatten(0, 1), Error);
    CHECK_THROWS_AS(ones({}).flatten(-2), Error);
}

TEST_CASE("reshape copies only when no strides fit", "[views]") {
    const Tensor x = counting({2, 3, 4});
    CHECK(shares(x.reshape({24}), x));
    CHECK_FALSE(shares(x.transpose(0, 1).reshape({24}), x));
    CHECK(shares(x.transpose(0, 1).reshape({3, 2, 2, 2}), x));  // cuts a dimension, merges none
    CHECK(shares(x.slice(0, 1, 2).reshape({12}), x));
    CHECK(shares(x.slice(1, 0, 2).reshape({2, 8}), x));
    CHECK_FALSE(shares(x.slice(2, 0, 2).reshape({12}), x));
    CHECK(shares(x.slice(2, 0, 4, 2).reshape({6, 2}), x));
    const auto turned = doubles(x.transpose(0, 1).contiguous());
    for (const Shape& shape : {Shape{24}, Shape{3, 2, 2, 2}, Shape{6, 4}, Shape{3, 8}, Shape{1, 3, 1, 8}}) {
        CAPTURE(shape.size());
        CHECK(doubles(x.transpose(0, 1).reshape(shape)) == turned);
    }
}

TEST_CASE("detach and clone", "[views]") {
    const Tensor x = counting({3}).clone().set_requires_grad();
    const Tensor detached = (x * 2.0).detach(), copy = x.clone();
    CHECK_FALSE(detached.requires_grad());
    CHECK(copy.requires_grad());
    CHECK_FALSE(shares(copy, x));
    CHECK(shares(x.detach(), x));
    CHECK(x.contiguous().impl() == x.impl());
    CHECK(x.to(float32).impl() == x.impl());
    CHECK(x.to(x.device()).impl() == x.impl());
}

TEST_CASE("in-place arithmetic", "[views][inplace]") {
    for (Device device : devices()) {
        const Tensor x = counting({2, 2}).to(device).clone();
        x.add_(ones({2}, {.device = device}), 10);
        CHECK(doubles(x) == Values{10, 11, 12, 13});
        x.mul_(2);
        x.t().add_(x);
        CHECK(doubles(x) == Values{40, 46, 46, 52});
        const Tensor y = counting({100, 100}).to(device).clone();
        y.add_(y.t());  // reads what it writes in another order
        CHECK(doubles(y) == doubles(y.t()));
        CHECK(doubles(y[99])[0] == 99 + 9900);
        x.mul_(x);
        CHECK(doubles(x) == Values{1600, 2116, 2116, 2704});
        const Tensor half = zeros({2}, {.dtype = float16, .device = device});
        half.add_(full({2}, 0.5, {.device = device}), -1);
        CHECK(half.dtype() == float16);
        CHECK(doubles(half) == Values{-0.5, -0.5});
        x.select(1, 0).mul_(0);
        CHECK(doubles(x) == Values{0, 2116, 0, 2704});
    }
}

TEST_CASE("in-place arithmetic refuses fractions of integers, and keeps the digits of float64",
          "[views][inplace]") {
    const Tensor n = arange(3), wide = zeros({1}, {.dtype = float64});
    CHECK_THROWS_WITH(n.add_(n, 0.5), Contains("add_: 0.5 is no whole number, and the tensor is int64"));
    CHECK_THROWS_WITH(n.mul_(0.5), Contains("mul_: 0.5"));
    CHECK(doubles(n) == Values{0, 1, 2});
    CHECK(doubles(n.mul_(-2)) == Values{0, -2, -4});
    CHECK(doubles(n.add_(n, 2)) == Values{0, -6, -12});
    CHECK(wide.add_(full({1}, 0.5), 0.1).item<double>() == 0.5 * 0.1);
    CHECK(wide.zero_().add_(full({1}, 16777217, {.dtype = int64}), 3).item<double>() == 3.0 * 16777217);
}

TEST_CASE("copy_ converts, broadcasts, reverses and crosses devices", "[views][inplace]") {
    for (Device device : devices()) {
        const Tensor x = zeros({2, 3}, {.dtype = int32, .device = device});
        x.copy_(Tensor::from({1.5f, 2.5f, -3.5f}));
        CHECK(doubles(x) == Values{1, 2, -3, 1, 2, -3});
        const Tensor y = counting({5000}).to(device).clone(), before = y.slice(0, 0, 4999).clone();
        y.slice(0, 1, 5000).copy_(y.slice(0, 0, 4999));
        CHECK(doubles(y.slice(0, 1, 5000)) == doubles(before));
    }
}

TEST_CASE("random fills follow the stream and respect strides", "[views][inplace]") {
    manual_seed(3);
    const Tensor a = zeros({8}).uniform_(2, 3);
    const Tensor wide = zeros({8, 2});
    manual_seed(3);
    wide.select(1, 1).uniform_(2, 3);
    CHECK(doubles(wide.select(1, 1)) == doubles(a));
    CHECK(doubles(wide.select(1, 0)) == Values(8, 0));
    for (double v : doubles(a)) CHECK((v >= 2 && v < 3));
    const Tensor n = zeros({4000}).normal_(5, 2);
    CHECK(mean(n).item<double>() == Approx(5).margin(0.15));
    CHECK(mean(square(n - 5.0)).item<double>() == Approx(4).margin(0.4));
    CHECK_THROWS_WITH(n.normal_(0, NAN), "normal_: stddev nan is negative or not a number");
}

TEST_CASE("in-place writes bump the version, and are refused where history would be wrong",
          "[views][inplace]") {
    const Tensor x = ones({2}).set_requires_grad();
    const std::uint64_t version = x.version();
    for (auto write :
         {+[](const Tensor& t) { t.zero_(); }, +[](const Tensor& t) { t.add_(ones({2})); },
          +[](const Tensor& t) { t.mul_(2); }, +[](const Tensor& t) { t.copy_(ones({2})); },
          +[](const Tensor& t) { t.uniform_(0, 1); }, +[](const Tensor& t) { t.normal_(0, 1); }}) {
        CHECK_THROWS_WITH(write(x), Catch::Contains("NoGrad"));
        CHECK(x.version() == version);
        CHECK(doubles(x) == Values{1, 1});
        const Tensor y = ones({2}).set_requires_grad();
        const std::uint64_t before = y.version();
        NoGrad plain;
        write(y);
        CHECK(y.version() > before);
    }
}

TEST_CASE("conversions between all dtypes", "[views]") {
    const Dtype all[] = {float16, bfloat16, float32, float64, int32, int64, uint8, boolean};
    for (Device device : devices())
        for (Dtype from : all)
            for (Dtype to : all) {
                CAPTURE(name(from), name(to), name(device.type()));
                const Tensor x = tensor_of({0, 1, 2, 100}, {2, 2}, from, device);
                const Tensor y = x.t().to(to);
                CHECK(y.dtype() == to);
                const bool flags = from == boolean || to == boolean;
                CHECK(doubles(y) == (flags ? Values{0, 1, 1, 1} : Values{0, 2, 1, 100}));
            }
}

TEST_CASE("a function that is no view has memory of its own, also where it changes nothing") {
    const auto apart = [](Shape shape, auto f) {
        const Tensor x = ones(shape).set_requires_grad();
        const Tensor y = f(x);
        sum(y * 3.0).backward();
        CHECK(test::doubles(x.grad()) == std::vector<double>(std::size_t(y.numel()), 3));
        y.detach().fill_(77);
        CHECK(test::doubles(x) == std::vector<double>(std::size_t(x.numel()), 1));
    };
    const auto all = [&] {
        apart({2, 1}, [](const Tensor& x) { return logcumsumexp(x, 1); });
        const auto resized = [](InterpolateMode mode) {
            return [mode](const Tensor& x) { return interpolate(x, {2, 2}, {.mode = mode}); };
        };
        apart({1, 2, 2, 1}, resized(InterpolateMode::nearest));
        apart({1, 2, 2, 1}, resized(InterpolateMode::nearest_exact));
        apart({1, 2, 2, 1}, [](const Tensor& x) { return pixel_shuffle(x, 1); });
        apart({1, 2, 2, 1}, [](const Tensor& x) { return pixel_unshuffle(x, 1); });
        apart({1, 2, 2, 4}, [](const Tensor& x) { return channel_shuffle(x, 1); });
        apart({1, 2, 2, 4}, [](const Tensor& x) { return channel_shuffle(x, 4); });
        apart({2, 2}, [](const Tensor& x) { return pad(x, {}); });
        apart({2, 2}, [](const Tensor& x) { return pad(x, {{1, 0, 0}}, PadMode::reflect); });
        apart({1, 1}, [](const Tensor& x) { return diag(x); });
        apart({2, 2}, [](const Tensor& x) { return flip(x, {}); });
        apart({2, 2}, [](const Tensor& x) { return roll(x, 4); });
        apart({2, 2}, [](const Tensor& x) { return repeat(x, {1, 1}); });
    };
    all();
    const test::ByDecomposition plainly;
    all();
}
