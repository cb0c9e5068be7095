#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "core/philox.h"
#include "core/random_offset.h"
#include "core/tensor_impl.h"
#include "mezzo/image_ops.h"
#include "mezzo/ops.h"

using namespace mezzo;
using Catch::Matchers::Contains;

namespace {

std::vector<Device> all_devices() {
    std::vector<Device> devices{cpu_device};
    if (cuda_device_count() > 0) devices.push_back(Device(DeviceType::cuda));
    return devices;
}

// Restores the random stream at the end of a case.
struct KeepStream {
    RandomState state = random_state();
    ~KeepStream() { set_random_state(state); }
};

}  // namespace

TEST_CASE("factories: constants in every dtype") {
    for (const Device device : all_devices())
        for (int i = 0; i < dtype_count; ++i) {
            const auto dtype = static_cast<Dtype>(i);
            INFO(name(dtype) << " on " << name(device.type()));
            if (dtype == float8_e8m0fnu) continue;  // has no 0
            CHECK(zeros({2, 3}, {.dtype = dtype, .device = device}).to_vector<float>() ==
                  std::vector<float>(6, 0));
            CHECK(ones({5}, {.dtype = dtype, .device = device}).to_vector<float>() ==
                  std::vector<float>(5, 1));
            const Tensor s = scalar(1, {.dtype = dtype, .device = device});
            CHECK(s.dim() == 0);
            CHECK(s.item<int>() == 1);
            CHECK(s.dtype() == dtype);
            CHECK(zeros_like(s).item<int>() == 0);
            CHECK(ones_like(zeros({2, 2}, {.dtype = dtype, .device = device})).to_vector<int>() ==
                  std::vector<int>(4, 1));
        }
    CHECK(full({3}, -2.5).to_vector<float>() == std::vector<float>(3, -2.5f));
    CHECK(full({3}, 1e6, {.dtype = float16}).to_vector<float>()[0] == HUGE_VALF);
    CHECK(zeros({0, 4}).numel() == 0);
    CHECK(ones({2}, {.requires_grad = true}).requires_grad());
    CHECK_THROWS_WITH(zeros({2}, {.dtype = int32, .requires_grad = true}), Contains("int32 has no gradient"));
}

TEST_CASE("factories: arange counts") {
    for (const Device device : all_devices()) {
        CHECK(arange(5, {.dtype = int64, .device = device}).to_vector<int>() ==
              std::vector<int>{0, 1, 2, 3, 4});
        CHECK(arange(3, {.dtype = float16, .device = device}).to_vector<int>() == std::vector<int>{0, 1, 2});
    }
    CHECK(arange(0).numel() == 0);
    CHECK(arange(2).dtype() == int64);
    CHECK_THROWS_WITH(arange(-1), Contains("arange: end is -1"));
    CHECK_THROWS_WITH(arange(2, {.dtype = boolean}), Contains("boolean"));
}

TEST_CASE("factories: a device alone does not change the dtype of integers") {
    for (const Device device : all_devices()) {
        const Tensor integers[] = {arange(3, {.device = device}), arange(1, 3, {.device = device}),
                                   arange(1, 7, 2, {.device = device}),
                                   randint(0, 9, {3}, {.device = device}), randperm(3, {.device = device})};
        for (const Tensor& x : integers) {
            CHECK(x.dtype() == int64);
            CHECK(x.device() == device);
        }
        CHECK(arange(3.0, {.device = device}).dtype() == float32);
    }
    const TensorOptions options{.dtype = float64, .requires_grad = true};
    CHECK(arange(3, options).dtype() == float64);
    CHECK(arange(3, options).requires_grad());
    CHECK(randperm(3, TensorOptions()).dtype() == float32);
}

TEST_CASE("factories: linspace refuses bounds whose difference is infinite") {
    CHECK_THROWS_WITH(linspace(-1e308, 1e308, 3, {.dtype = float64}), Contains("linspace: start -1e+308"));
}

TEST_CASE("factories: values that an integral dtype lacks are errors") {
    CHECK_THROWS_WITH(full({2}, 300, {.dtype = uint8}), Contains("full: value 300 is no number of uint8"));
    CHECK_THROWS_WITH(full({2}, -1, {.dtype = uint8}), Contains("full: value -1"));
    CHECK_THROWS_WITH(full({2}, 0x1p31, {.dtype = int32}), Contains("is no number of int32"));
    CHECK_THROWS_WITH(full({2}, 0x1p63, {.dtype = int64}), Contains("is no number of int64"));
    CHECK_THROWS_WITH(scalar(NAN, {.dtype = int64}), Contains("full: value nan"));
    CHECK(full({1}, -0.9, {.dtype = uint8}).item<int>() == 0);
    CHECK(full({1}, 255.9, {.dtype = uint8}).item<int>() == 255);
    CHECK(full({1}, -0x1p63, {.dtype = int64}).item<std::int64_t>() == INT64_MIN);
    CHECK(full({1}, -0x1p31, {.dtype = int32}).item<std::int64_t>() == INT32_MIN);
    CHECK(full({1}, 300, {.dtype = boolean}).item<bool>());
    CHECK(full({1}, INFINITY, {.dtype = float16}).item<float>() == INFINITY);
    const Tensor x = zeros({3}, {.dtype = uint8}), n = arange(3);
    CHECK_THROWS_WITH(x.fill_(256), Contains("fill_: value 256 is no number of uint8"));
    CHECK_THROWS_WITH(pad(x, {{0, 1, 1}}, PadMode::constant, 256), Contains("pad: value 256"));
    CHECK_THROWS_WITH(masked_fill(x, eq(x, 0), 256), Contains("masked_fill: value 256"));
    CHECK_THROWS_WITH(clamp(x, 300, 400), Contains("clamp: low 300 is no number of uint8"));
    CHECK_THROWS_WITH(clamp(x, -5, -1), Contains("clamp: high -1 is no number of uint8"));
    CHECK(clamp(x, -5, 400).to_vector<int>() == std::vector<int>{0, 0, 0});
    CHECK(clamp(n, 1, INFINITY).to_vector<int>() == std::vector<int>{1, 1, 2});
    CHECK(clamp(n, -INFINITY, 1).to_vector<int>() == std::vector<int>{0, 1, 1});
}

TEST_CASE("factories: rand is the documented use of the stream, on every device") {
    const KeepStream keep;
    for (const Device device : all_devices()) {
        manual_seed(3);
        reserve_random(5);
        const std::vector<float> got = rand({10}, {.device = device}).to_vector<float>();
        CHECK(random_state().offset == 5 + 3);
        for (std::size_t i = 0; i < got.size(); ++i)
            CHECK(got[i] == philox_uniform(philox(3, 5 + i / 4).v[i % 4]));
        const RandomState now = random_state();
        const Tensor a = rand({1000}, {.dtype = bfloat16, .device = device});
        set_random_state(now);
        CHECK(all_close(a, rand({1000}, {.dtype = bfloat16, .device = device}), 0, 0));
        CHECK_FALSE(all_close(a, rand({1000}, {.dtype = bfloat16, .device = device})));
    }
    CHECK_THROWS_WITH(rand({2}, {.dtype = int64}), Contains("rand: needs a floating dtype, got int64"));
    const RandomState before = random_state();
    CHECK_THROWS_AS(rand({2, -1}), Error);
    CHECK(random_state().offset == before.offset);  // an error costs nothing
}

TEST_CASE("factories: randn has the moments of a normal distribution") {
    const KeepStream keep;
    manual_seed(11);
    for (const Dtype dtype : {float32, float64, float16}) {
        const std::vector<double> values = randn({40000}, {.dtype = dtype}).to_vector<double>();
        double sum = 0, squares = 0, fourth = 0;
        for (const double v : values) {
            sum += v;
            squares += v * v;
            fourth += v * v * v * v;
        }
        const double n = 40000;
        CHECK(std::fabs(sum / n) < 5 / std::sqrt(n));  // five standard errors, as below
        CHECK(std::fabs(squares / n - 1) < 5 * std::sqrt(2 / n));
        CHECK(std::fabs(fourth / n - 3) < 5 * std::sqrt(96 / n));
    }
    CHECK_THROWS_WITH(randn({2}, {.dtype = uint8}), Contains("randn: needs a floating dtype"));
}

TEST_CASE("factories: randint stays inside its bounds and reaches them") {
    const KeepStream keep;
    manual_seed(12);
    for (const Device device : all_devices()) {
        const std::vector<int> values =
            randint(-2, 5, {7000}, {.dtype = int32, .device = device}).to_vector<int>();
        for (int v = -2; v < 5; ++v) {
            const auto count = std::count(values.begin(), values.end(), v);
            CHECK(count > 1000 - 5 * 30);  // five standard deviations of a binomial count
            CHECK(count < 1000 + 5 * 30);
        }
        CHECK(*std::min_element(values.begin(), values.end()) == -2);
        CHECK(*std::max_element(values.begin(), values.end()) == 4);
    }
    CHECK(randint(4, 5, {3}).to_vector<int>() == std::vector<int>{4, 4, 4});
    CHECK_THROWS_WITH(randint(5, 5, {3}), Contains("randint: cannot draw from [5, 5)"));
    CHECK_THROWS_AS(randint(0, std::int64_t(1) << 33, {3}), Error);
    CHECK_THROWS_WITH(randint(0, 257, {3}, {.dtype = uint8}),
                      Contains("randint: uint8 cannot hold the integers from 0 to 256"));
    CHECK_THROWS_AS(randint(-1, 2, {3}, {.dtype = uint8}), Error);
    CHECK_THROWS_AS(randint(0, 3, {3}, {.dtype = boolean}), Error);
    CHECK_THROWS_AS(randint(0, 65506, {3}, {.dtype = float16}), Error);
    CHECK(randint(255, 256, {1}, {.dtype = uint8}).item<int>() == 255);
    CHECK(randint(-2147483648, -2147483647, {1}, {.dtype = int32}).item<double>() == -2147483648.0);
}

TEST_CASE("factories: randperm is a permutation, any first element equally likely") {
    const KeepStream keep;
    manual_seed(13);
    std::vector<int> values = randperm(1000).to_vector<int>();
    CHECK_FALSE(std::is_sorted(values.begin(), values.end()));
    std::sort(values.begin(), values.end());
    CHECK(values == arange(1000).to_vector<int>());
    CHECK(random_state().offset == 250);
    int first[4] = {};
    for (int i = 0; i < 4000; ++i) ++first[randperm(4).to_vector<int>()[0]];
    for (const int count : first) CHECK(std::abs(count - 1000) < 5 * 28);
    CHECK(randperm(0).numel() == 0);
    CHECK(randperm(1, {.dtype = float32}).item<float>() == 0);
    CHECK_THROWS_WITH(randperm(-3), Contains("randperm: n is -3"));
    CHECK(randperm(256, {.dtype = uint8}).numel() == 256);
    CHECK_THROWS_WITH(randperm(257, {.dtype = uint8}), Contains("randperm: uint8 cannot hold"));
}
