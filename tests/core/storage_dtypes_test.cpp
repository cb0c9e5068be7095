// The dtypes for storage only (int8, float8): what works with them, on every device, and what they refuse.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include "core/storage_codes.h"
#include "mezzo/autocast.h"
#include "mezzo/autograd.h"
#include "mezzo/fmt.h"
#include "mezzo/index_ops.h"
#include "mezzo/ops.h"
#include "mezzo/pointwise_ops.h"
#include "mezzo/reduce_ops.h"
#include "mezzo/shape_ops.h"
#include "mezzo/sort_ops.h"
#include "tests/support/support.h"

using namespace mezzo;
using Catch::Matchers::Contains;

namespace {

constexpr Dtype storage[] = {int8, float8_e4m3fn, float8_e5m2, float8_e8m0fnu};
using Values = std::vector<double>;

// 1, 2, 4, 8, ...: exact in every dtype, the last of 64 but for int8.
Tensor powers(const Shape& shape, Dtype dtype, Device device) {
    std::vector<double> values(std::size_t(shape.numel()));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = double(1 << i % 7);
    return Tensor::from<double>(values, shape, {.dtype = dtype, .device = device});
}

template <class F> void on_all(const F& f) {
    for (const Device device : test::devices())
        for (const Dtype dtype : storage) {
            INFO(name(dtype) << " on " << name(device.type()));
            f(dtype, device);
        }
}

}  // namespace

TEST_CASE("storage dtypes: new tensors, and values on the host") {
    on_all([](Dtype dtype, Device device) {
        const TensorOptions options{.dtype = dtype, .device = device};
        CHECK(empty({2, 0}, options).to_vector<float>().empty());
        CHECK(test::doubles(full({3}, 2, options)) == Values{2, 2, 2});
        CHECK(scalar(4, options).item<int>() == 4);
        CHECK(test::doubles(ones_like(empty({2}, options))) == Values{1, 1});
        CHECK(test::doubles(zeros({1}, options)) == Values{dtype == float8_e8m0fnu ? 0x1p-127 : 0});
        const Tensor x = powers({2, 3}, dtype, device);
        CHECK(x.dtype() == dtype);
        CHECK(x.to_vector<std::int64_t>() == std::vector<std::int64_t>{1, 2, 4, 8, 16, 32});
        CHECK(x.to_vector<bool>() == std::vector<bool>(6, true));
        CHECK(test::doubles(empty_like(x).fill_(8)) == Values(6, 8));
        const Tensor y = empty({6}, options);
        y.copy_(x.reshape({6}));
        y.slice(0, 1, 6, 2).fill_(64);
        CHECK(test::doubles(y) == Values{1, 64, 4, 64, 16, 64});
    });
    CHECK(full({1}, -128, {.dtype = int8}).item<int>() == -128);
    CHECK_THROWS_WITH(full({1}, 128, {.dtype = int8}), Contains("full: value 128 is no number of int8"));
    CHECK_THROWS_WITH(full({1}, -129, {.dtype = int8}), Contains("full: value -129 is no number of int8"));
    CHECK(full({1}, 1e9, {.dtype = float8_e4m3fn}).item<float>() == 448);
    CHECK(full({1}, -1e9, {.dtype = float8_e5m2}).item<float>() == -HUGE_VALF);
    CHECK(full({1}, -3, {.dtype = float8_e8m0fnu}).item<float>() == 4);
}

TEST_CASE("storage dtypes: the C++ types keep their bits") {
    std::vector<float8_e5m2_t> codes(256);
    for (int i = 0; i < 256; ++i) codes[std::size_t(i)] = float8_e5m2_t::from_bits(std::uint8_t(i));
    for (const Device device : test::devices()) {
        const Tensor x = Tensor::from<float8_e5m2_t>(codes, {256}, {.dtype = float8_e5m2, .device = device});
        const std::vector<float8_e5m2_t> back = x.clone().to_vector<float8_e5m2_t>();
        for (int i = 0; i < 256; ++i) CHECK(int(back[std::size_t(i)].bits) == i);
        CHECK(x[0x7d].item<float8_e5m2_t>().bits == 0x7d);
    }
    const std::vector<std::int8_t> small{-128, -1, 0, 127};
    const Tensor x = Tensor::from<std::int8_t>(small, {4}, {.dtype = int8});
    CHECK(x.data<std::int8_t>()[0] == -128);
    CHECK(x.to_vector<std::int8_t>() == small);
    CHECK(x.to_vector<std::uint8_t>() == std::vector<std::uint8_t>{128, 255, 0, 127});
    CHECK(test::doubles(Tensor::from<std::int8_t>(small, {4})) == Values{-128, -1, 0, 127});
    const float8_e4m3fn_t ones[] = {float8_e4m3fn_t(1.0f), float8_e4m3fn_t(-0.5f)};
    CHECK(test::doubles(Tensor::from<float8_e4m3fn_t>(ones, {2}, {.dtype = float64})) == Values{1, -0.5});
    CHECK(full({2}, 300.5).to_vector<float8_e4m3fn_t>()[1].bits == float8_e4m3fn_t(300.5f).bits);
    x.mutable_data<std::int8_t>()[1] = 5;
    CHECK(x[1].item<int>() == 5);
    static_assert(float8_e4m3fn_t(1.5f).bits == 0x3c && float(float8_e5m2_t(-2.0f)) == -2.0f);
    static_assert(float(float8_e8m0fnu_t(0.25f)) == 0.25f && dtype_of<float8_e8m0fnu_t>() == float8_e8m0fnu);
}

TEST_CASE("storage dtypes: host values are rounded once, as by to()") {
    const double tie = 17.0;  // between 16 and 18
    const std::vector<double> values{tie, tie + 1e-12, 1e-300, -tie - 1e-12};
    for (const Dtype dtype : {float8_e4m3fn, float8_e5m2, float8_e8m0fnu}) {
        CAPTURE(name(dtype));
        const Tensor wide = Tensor::from<double>(values, {4});
        const Tensor x = Tensor::from<double>(values, {4}, {.dtype = dtype});
        CHECK(test::doubles(x) ==
              test::doubles(Tensor::from<double>(values, {4}, {.dtype = float64}).to(dtype)));
        for (std::size_t i = 0; i < 4; ++i) {
            const Tensor one = full({1}, values[i], {.dtype = dtype});
            CHECK(one.item<double>() == test::doubles(x)[i]);
        }
    }
    CHECK(test::doubles(Tensor::from<double>(values, {4}, {.dtype = float8_e4m3fn})) ==
          Values{16, 18, 0, -18});
}

TEST_CASE("storage dtypes: views, copies, indexing and joins") {
    on_all([](Dtype dtype, Device device) {
        const Tensor x = powers({2, 3, 4}, dtype, device);
        const Values values = test::doubles(x);
        const auto at = [&](int i, int j, int k) { return values[std::size_t(12 * i + 4 * j + k)]; };
        const Tensor turned = x.permute({2, 0, 1});
        CHECK_FALSE(turned.is_contiguous());
        CHECK(turned.contiguous().dtype() == dtype);
        CHECK(test::doubles(turned.contiguous()) == test::doubles(turned));
        CHECK(test::doubles(turned.reshape({24}))[7] == at(0, 1, 1));
        CHECK(x[{1, 2, 3}].item<double>() == at(1, 2, 3));
        CHECK(test::doubles(x[{0, Slice(1, 3), 2}]) == Values{at(0, 1, 2), at(0, 2, 2)});
        CHECK(test::doubles(x.slice(2, 0, 4, 2).clone())[3] == at(0, 1, 2));
        CHECK(test::doubles(x.select(1, 0).expand({3, 2, 4}).contiguous())[12] == at(1, 0, 0));
        const Tensor both = cat({x.slice(1, 0, 1), turned.permute({1, 2, 0})}, 1);
        CHECK(both.dtype() == dtype);
        CHECK(both.shape() == Shape{2, 4, 4});
        CHECK(both[{1, 1, 2}].item<double>() == at(1, 0, 2));
        CHECK(test::doubles(stack({x, x}, 0).select(0, 1)) == values);
        CHECK(test::doubles(split(x, 1, 0)[1])[0] == at(1, 0, 0));
        CHECK(test::doubles(repeat(x.select(0, 0).select(0, 0), {2}))[5] == at(0, 0, 1));
        const Tensor rows = Tensor::from<std::int64_t>({1, 0, 1}, {3}).to(device);
        CHECK(test::doubles(x[{rows}]) == test::doubles(stack({x[1], x[0], x[1]}, 0)));
        CHECK(test::doubles(index_select(x, 2, rows)).at(1) == at(0, 0, 0));
        CHECK(test::doubles(flip(x, {0, 2})).at(6) == at(1, 1, 1));
        CHECK(test::doubles(gather(x, 1, full({2, 1, 4}, 2, {.dtype = int64, .device = device}))) ==
              test::doubles(x.slice(1, 2, 3)));
        CHECK(equal(x, turned.permute({1, 2, 0})));
        CHECK_FALSE(equal(x, full({2, 3, 4}, 1, {.dtype = dtype, .device = device})));
        CHECK(all_close(x, x.to(float32)));
        const Tensor target = empty({4, 6}, {.dtype = dtype, .device = device});
        target.fill_(1);
        target.t().slice(0, 0, 4, 2).copy_(powers({2, 4}, float32, device));
        CHECK(target[{1, 2}].item<double>() == 32);
        CHECK(target[{1, 1}].item<double>() == 1);
        CHECK(test::doubles(x.to(cpu_device).to(device)) == values);
        CHECK(x.detach().numel() == 24);
        CHECK(empty({0, 3}, {.dtype = dtype, .device = device}).to(float32).numel() == 0);
        CHECK(cat({x.slice(0, 0, 0), x}, 0).shape() == x.shape());
    });
}

TEST_CASE("storage dtypes: to() between all dtypes, contiguous and strided") {
    on_all([](Dtype dtype, Device device) {
        for (const Dtype other : all_dtypes) {
            CAPTURE(name(other));
            const Values expected = other == boolean ? Values(6, 1) : Values{1, 8, 2, 16, 4, 32};
            const Tensor x = powers({2, 3}, other, device);
            CHECK(test::doubles(x.to(dtype).t()) == (other == boolean ? Values(6, 1) : expected));
            const Tensor y = powers({2, 3}, dtype, device).t();
            CHECK(y.to(other).dtype() == other);
            CHECK(test::doubles(y.to(other)) == expected);
            CHECK(test::doubles(x.t().to(dtype)) == expected);
            CHECK(test::doubles(scalar(1, {.dtype = other, .device = device}).to(dtype)) == Values{1});
        }
    });
}

TEST_CASE("storage dtypes: printed as PyTorch 2.15 prints them") {
    const auto text = [](std::initializer_list<float> values, Dtype dtype) {
        return Tensor::from(values).to(dtype).to_string();
    };
    const float nan = std::numeric_limits<float>::quiet_NaN();
    CHECK(text({1, 1.5f, -448, nan}, float8_e4m3fn) ==
          "tensor([   1.0000,    1.5000, -448.0000,       nan], dtype=float8_e4m3fn)");
    CHECK(text({1e-5f, 57344, HUGE_VALF}, float8_e5m2) ==
          "tensor([1.5259e-05, 5.7344e+04,        inf], dtype=float8_e5m2)");
    CHECK(text({1e-5f, 1, 3e38f}, float8_e8m0fnu) ==
          "tensor([7.6294e-06, 1.0000e+00,        nan], dtype=float8_e8m0fnu)");
    CHECK(text({1, 2}, float8_e4m3fn) == "tensor([1., 2.], dtype=float8_e4m3fn)");
    CHECK(text({-5, 100}, int8) == "tensor([ -5, 100], dtype=int8)");
    CHECK(empty({0}, {.dtype = float8_e4m3fn}).to_string() == "tensor([], dtype=float8_e4m3fn)");
}

TEST_CASE("storage dtypes: arithmetic is an error that names the op, the dtype and to()") {
    on_all([](Dtype dtype, Device device) {
        const Tensor x = powers({2, 2}, dtype, device), f = ones({2, 2}, {.device = device});
        const auto refused = [&](const char* op, const auto& call) {
            CAPTURE(op);
            try {
                call();
                FAIL_CHECK("no error");
            } catch (const Error& error) {
                CHECK(error.kind() == ErrorKind::dtype);
                CHECK_THAT(error.what(), Contains(std::string(op) + ": ") && Contains(name(dtype)) &&
                                             Contains("convert it with to()"));
            }
        };
        refused("add", [&] { x + x; });
        refused("add", [&] { f + x; });
        refused("add_scalar", [&] { x + 0.5; });
        refused("mul_scalar", [&] { 2 * x; });
        refused("relu", [&] { relu(x); });
        refused("exp", [&] { exp(x); });
        refused("eq", [&] { eq(x, x); });
        refused("lt", [&] { lt(x, 1); });
        refused("sum", [&] { sum(x); });
        refused("sum", [&] { sum(x, {}, {.dtype = float32, .explicit_dtype = true}); });
        refused("sum", [&] { sum(f, {}, {.dtype = dtype, .explicit_dtype = true}); });
        refused("cumsum", [&] { cumsum(f, 0, dtype); });
        refused("mean", [&] { mean(x); });
        refused("max", [&] { max(x); });
        refused("argmax", [&] { argmax(x, 0); });
        refused("matmul", [&] { matmul(x, f); });
        refused("linear", [&] { linear(f, x); });
        refused("softmax", [&] { softmax(x, -1); });
        const Tensor each = zeros({2}, {.dtype = int64, .device = device});  // its shape is looked at later
        refused("scatter_add", [&] { scatter_add(x, 0, each, x); });
        refused("scatter", [&] { scatter(x, 0, each, x); });
        refused("where", [&] { where(gt(f, 0), x, f); });
        refused("argsort", [&] { argsort(x, 0); });
        refused("cat", [&] { cat({f, x}, 0); });
        refused("isnan", [&] { isnan(x); });
        refused("promote", [&] { promote(dtype, float32); });
        refused("add_", [&] { x.add_(x); });
        refused("add_", [&] { f.add_(x); });
        refused("mul_", [&] { x.mul_(2); });
        refused("uniform_", [&] { x.uniform_(0, 1); });
        refused("set_requires_grad", [&] { x.set_requires_grad(); });
        refused("rand", [&] { rand({2}, {.dtype = dtype, .device = device}); });
        refused("arange", [&] { arange(3, {.dtype = dtype, .device = device}); });
        refused("arange", [&] { arange(0, 300, 100, {.dtype = dtype, .device = device}); });
        refused("linspace", [&] { linspace(0, 300, 3, {.dtype = dtype, .device = device}); });
        refused("randint", [&] { randint(0, 2, {2}, {.dtype = dtype, .device = device}); });
        CHECK(test::doubles(x) == Values{1, 2, 4, 8});  // as before
        CHECK(promote(dtype, dtype) == dtype);
    });
}

TEST_CASE("storage dtypes: autocast and gradients leave them alone") {
    for (const Device device : test::devices()) {
        const amp::Autocast scope({.dtype = bfloat16});
        const Tensor codes = powers({2, 2}, float8_e4m3fn, device);
        CHECK(codes.clone().dtype() == float8_e4m3fn);
        CHECK(cat({codes, codes}, 0).dtype() == float8_e4m3fn);
        const Tensor w = ones({2, 2}, {.device = device}).set_requires_grad();
        const Tensor y = matmul(w, codes.to(float32));
        CHECK(y.dtype() == bfloat16);
        sum(y).backward();
        CHECK(test::doubles(w.grad()) == Values{3, 12, 3, 12});
        CHECK_FALSE(w.to(float8_e4m3fn).requires_grad());
    }
}

TEST_CASE("storage dtypes: the code of a number") {
    CHECK(int(code_of(-1, int8)) == 255);
    CHECK(int(code_of(1.5, float8_e4m3fn)) == 0x3c);
    CHECK(int(code_of((std::int64_t(1) << 62) + (std::int64_t(1) << 61) - 1, float8_e8m0fnu)) == 189);
    CHECK(values_of_codes(int8)[200] == -56);
    CHECK(values_of_codes(float8_e8m0fnu)[0] == 0x1p-127f);
}
