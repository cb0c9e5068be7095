// Pooling, resizing and padding against PyTorch's values, at the edges of their options, and as layers.
#include <catch2/catch.hpp>

#include <cmath>
#include <limits>

#include "cpu/isa/isa.h"
#include "mezzo/autograd.h"
#include "mezzo/error.h"
#include "mezzo/image_ops.h"
#include "mezzo/nn.h"
#include "tests/nn/module_helpers.h"
#include "tests/reference/pool.h"
#include "tests/support/support.h"

using namespace mezzo;
using namespace mezzo::test;

namespace {

constexpr double inf = std::numeric_limits<double>::infinity();
constexpr auto bilinear_mode = InterpolateMode::bilinear;

// The formula of tools/reference_pool.py.
Tensor image(const Shape& shape, std::int64_t step, std::int64_t modulus) {
    std::vector<double> values;
    for (std::int64_t i = 0; i < shape.numel(); ++i)
        values.push_back(double((i * step + 3) % modulus - modulus / 2) / 8);
    return Tensor::from(values, shape);
}

struct Golden {
    const char* name;
    Tensor (*function)(const Tensor& x);
    std::span<const std::int64_t> shape;
    std::span<const double> value, gradient;
};
#define GOLDEN(name, call)                                                         \
    Golden {                                                                       \
#name, [](const Tensor& x) { return call; }, pool_reference::name##_shape, \
                                                  pool_reference::name##_value,    \
                                                  pool_reference::name##_gradient  \
    }

// clang-format off
const std::vector<Golden>& goldens() {
    static const std::vector<Golden> all{
        GOLDEN(max_2, max_pool2d(x, {.kernel_size = 2})),
        GOLDEN(max_3_2_1, max_pool2d(x, {.kernel_size = 3, .stride = 2, .padding = 1})),
        GOLDEN(max_ceil, max_pool2d(x, {.kernel_size = {2, 3}, .stride = 2, .padding = {0, 1},
            .ceil_mode = true})),
        GOLDEN(max_dilated, max_pool2d(x, {.kernel_size = {2, 3}, .stride = 1, .padding = {1, 0},
            .dilation = 2})),
        GOLDEN(avg_2, avg_pool2d(x, {.kernel_size = 2})),
        GOLDEN(avg_3_2_1, avg_pool2d(x, {.kernel_size = 3, .stride = 2, .padding = 1})),
        GOLDEN(avg_without_padding, avg_pool2d(x, {.kernel_size = 3, .stride = 2, .padding = 1,
            .count_include_pad = false})),
        GOLDEN(avg_ceil, avg_pool2d(x, {.kernel_size = {2, 4}, .stride = {2, 3}, .padding = {1, 2},
            .ceil_mode = true})),
        GOLDEN(avg_ceil_without_padding, avg_pool2d(x, {.kernel_size = {2, 4}, .stride = {2, 3},
            .padding = {1, 2}, .ceil_mode = true,
                                                        .count_include_pad = false})),
        GOLDEN(adaptive_avg_1, adaptive_avg_pool2d(x, 1)),
        GOLDEN(adaptive_avg_3_4, adaptive_avg_pool2d(x, {3, 4})),
        GOLDEN(adaptive_avg_7_8, adaptive_avg_pool2d(x, {7, 8})),
        GOLDEN(adaptive_max_3_4, adaptive_max_pool2d(x, {3, 4})),
        GOLDEN(adaptive_max_7_4, adaptive_max_pool2d(x, {7, 4})),
        GOLDEN(nearest_up, interpolate(x, {10, 13})),
        GOLDEN(nearest_down, interpolate(x, {3, 4})),
        GOLDEN(bilinear_up, interpolate(x, {10, 13}, {.mode = bilinear_mode})),
        GOLDEN(bilinear_down, interpolate(x, {3, 4}, {.mode = bilinear_mode})),
        GOLDEN(bilinear_corners_up, interpolate(x, {9, 8}, {.mode = bilinear_mode, .align_corners = true})),
        GOLDEN(bilinear_corners_down, interpolate(x, {1, 3}, {.mode = bilinear_mode, .align_corners = true})),
        GOLDEN(pad_constant, pad(x, {{2, 1, 2}, {1, 0, 3}}, PadMode::constant, 1.5)),
        GOLDEN(pad_constant_crop, pad(x, {{2, -1, 2}, {1, 3, -2}}, PadMode::constant, -2)),
        GOLDEN(pad_reflect, pad(x, {{2, 5, 1}, {1, 2, 4}}, PadMode::reflect)),
        GOLDEN(pad_reflect_crop, pad(x, {{2, -2, 3}, {1, 1, -1}}, PadMode::reflect)),
        GOLDEN(pad_replicate, pad(x, {{2, 7, 1}, {1, 2, 6}}, PadMode::replicate)),
        GOLDEN(pad_replicate_crop, pad(x, {{2, -2, 3}, {1, 1, -1}}, PadMode::replicate)),
        GOLDEN(pad_circular, pad(x, {{2, 6, 1}, {1, 2, 5}}, PadMode::circular)),
        GOLDEN(pad_circular_crop, pad(x, {{2, -2, 3}, {1, 1, -1}}, PadMode::circular)),
    };
    return all;
}
// clang-format on

std::string message_of(const auto& f) {
    try {
        f();
    } catch (const Error& e) {
        return e.what();
    }
    return "no error";
}

void check_error(const auto& f, ErrorKind kind, std::initializer_list<const char*> words) {
    const std::string text = message_of(f);
    CAPTURE(text);
    for (const char* word : words) CHECK(text.find(word) != std::string::npos);
    try {
        f();
    } catch (const Error& e) {
        CHECK(e.kind() == kind);
    }
}

Tensor gradient_of(const auto& function, const Tensor& given) {
    const Tensor x = given.detach().clone().set_requires_grad();
    const Tensor y = function(x);
    y.backward({.gradient = ones_like(y)});
    return x.grad();
}

}  // namespace

TEST_CASE("pooling, resizing and padding agree with PyTorch") {
    for (const Golden& golden : goldens())
        for (Device device : devices())
            for (Dtype dtype : {float64, float32, bfloat16}) {
                CAPTURE(golden.name, name(device.type()), name(dtype));
                const Tensor x = image({1, 5, 6, 2}, 29, 31).to(dtype).to(device).set_requires_grad();
                const Tensor y = golden.function(x);
                CHECK(y.shape() == Shape(golden.shape.data(), int(golden.shape.size())));
                const Tolerance allowed = dtype == float64 ? Tolerance{1e-8, 1e-8} : tolerance(dtype);
                CHECK(difference(doubles(y), golden.value, allowed) == "");
                y.backward({.gradient = image(y.shape(), 13, 17).to(dtype).to(device)});
                CHECK(difference(doubles(x.grad()), golden.gradient, allowed) == "");
            }
}

TEST_CASE("the nearest pixel is PyTorch's for all small sizes") {
    for (Device device : devices())
        for (std::int64_t size = 1; size <= 24; ++size) {
            const Tensor line = arange(size).to(float32).reshape({1, size, 1, 1}).to(device);
            double total = 0;
            for (std::int64_t results = 1; results < 99; ++results) {
                const std::vector<double> pixels = doubles(interpolate(line, {results, 1}));
                for (std::size_t i = 0; i < pixels.size(); ++i)
                    total += (double(i) + double(results)) * pixels[i];
            }
            CAPTURE(size);
            CHECK(total == pool_reference::nearest_places[size - 1]);
        }
}

TEST_CASE("in max_pool2d NaN wins, padding never, and the first of equals gets the gradient") {
    const double nan = std::nan("");
    for (Device device : devices())
        for (Dtype dtype : {float32, float64, float16, bfloat16}) {
            CAPTURE(name(device.type()), name(dtype));
            const auto pooled = [](const Tensor& x) { return max_pool2d(x, {.kernel_size = 2}); };
            const std::vector<double> values{1, nan, 3, 3, 2, 5, 3, 1};  // [2, 4]: NaN next to 5, ties of 3
            const Tensor x = tensor_of(values, {1, 2, 4, 1}, dtype, device);
            const std::vector<double> y = doubles(pooled(x));
            CHECK(std::isnan(y[0]));
            CHECK(y[1] == 3);
            CHECK(doubles(gradient_of(pooled, x)) == std::vector<double>{0, 1, 1, 0, 0, 0, 0, 0});

            const auto padded = [](const Tensor& t) {
                return max_pool2d(t, {.kernel_size = 3, .stride = 2, .padding = 1});
            };
            const Tensor lowest = full({1, 2, 2, 3}, -inf, {.dtype = dtype, .device = device});
            CHECK(doubles(padded(lowest)) == std::vector<double>(3, -inf));
            CHECK(doubles(gradient_of(padded, lowest)) ==
                  std::vector<double>{1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0});
        }
}

TEST_CASE("a window of max_pool2d whose places are all padding gives -inf and no gradient") {
    for (Device device : devices()) {
        const auto pooled = [](const Tensor& x) {
            return max_pool2d(x, {.kernel_size = {1, 2}, .stride = 1, .padding = {0, 3}, .dilation = {1, 5}});
        };
        const Tensor x =
            ones({1, 1, 2, 1}, {.device = device});  // windows read columns (-3, 2), (-2, 3), (-1, 4)
        CHECK(doubles(pooled(x)) == std::vector<double>{-inf, -inf, -inf});
        CHECK(doubles(gradient_of(pooled, x)) == std::vector<double>{0, 0});
    }
}

TEST_CASE("pools and resizing of no images, and of no channels") {
    for (Device device : devices())
        for (const Shape& shape : {Shape{0, 5, 6, 3}, Shape{2, 5, 6, 0}}) {
            const Tensor x = zeros(shape, {.device = device});
            const auto check = [&](const auto& function, std::int64_t height, std::int64_t width) {
                CHECK(function(x).shape() == Shape{shape[0], height, width, shape[3]});
                CHECK(gradient_of(function, x).shape() == shape);
            };
            check([](const Tensor& t) { return max_pool2d(t, {.kernel_size = 2}); }, 2, 3);
            check(
                [](const Tensor& t) {
                    return max_pool2d(t, {.kernel_size = {5, 60}, .padding = {0, 30}});
                },
                1, 1);
            check([](const Tensor& t) { return avg_pool2d(t, {.kernel_size = 2, .ceil_mode = true}); }, 3, 3);
            check([](const Tensor& t) { return adaptive_avg_pool2d(t, 1); }, 1, 1);
            check([](const Tensor& t) { return adaptive_max_pool2d(t, {4, 7}); }, 4, 7);
            check([](const Tensor& t) { return interpolate(t, {4, 7}); }, 4, 7);
            check([](const Tensor& t) { return interpolate(t, {4, 7}, {.mode = bilinear_mode}); }, 4, 7);
            check([](const Tensor& t) { return pad(t, {{1, 1, 1}, {2, -1, 2}}); }, 7, 7);
            check([](const Tensor& t) { return pad(t, {{1, 1, 1}, {2, 1, 2}}, PadMode::reflect); }, 7, 9);
        }
}

TEST_CASE("pad takes integers, and sizes of 0") {
    const Tensor x = arange(3);
    CHECK(pad(x, {{0, 1, 2}}, PadMode::constant, 7).to_vector<int>() == std::vector<int>{7, 0, 1, 2, 7, 7});
    CHECK(pad(x, {{-1, -2, 0}}).to_vector<int>() == std::vector<int>{2});
    CHECK(pad(x, {{0, -5, 7}}, PadMode::constant, 9).to_vector<int>() == std::vector<int>(5, 9));
    CHECK(pad(x, {{0, 7, -5}}, PadMode::constant, 9).to_vector<int>() == std::vector<int>(5, 9));
    CHECK(pad(x, {{0, -1, -2}}).shape() == Shape{0});
    CHECK(pad(x, {{0, 2, 1}}, PadMode::reflect).to_vector<int>() == std::vector<int>{2, 1, 0, 1, 2, 1});
    CHECK(pad(zeros({0, 2}), {{0, 1, 1}}, PadMode::constant, 4).to_vector<int>() == std::vector<int>(4, 4));
    CHECK(pad(x, {}).to_vector<int>() == std::vector<int>{0, 1, 2});
}

TEST_CASE("results of pools do not depend on the number of threads") {
    const Tensor x = randn({3, 17, 19, 33});
    const auto all = [&] {
        std::vector<double> values;
        for (const Golden& golden : goldens()) {
            for (const double v : doubles(golden.function(x))) values.push_back(v);
            for (const double v : doubles(gradient_of(golden.function, x))) values.push_back(v);
        }
        return values;
    };
    const int before = num_threads();
    set_num_threads(1);
    const std::vector<double> alone = all();
    set_num_threads(3);
    const std::vector<double> together = all();
    set_num_threads(before);
    const bool same = alone == together;  // by itself: Catch would print a million values
    CHECK(same);
}

TEST_CASE("pools agree with PyTorch on every instruction set of this processor") {
    for (cpu::Isa isa : cpu::all_isas) {
        if (isa > cpu::best_isa()) continue;
        cpu::force_isa(isa);
        for (const Golden& golden : goldens()) {
            CAPTURE(golden.name, cpu::name(isa));
            // 70 channels: blocks of vectors, single vectors and a remainder; all channels have the same
            // image.
            const Tensor x =
                image({1, 5, 6, 2}, 29, 31).unsqueeze(3).expand({1, 5, 6, 35, 2}).reshape({1, 5, 6, 70});
            const Tensor y = golden.function(x.to(float32));
            const Tensor split = y.reshape({y.size(1), y.size(2), 35, 2});
            for (std::int64_t i : {0, 17, 34})
                CHECK(difference(doubles(split.select(2, i)), golden.value, {1e-5, 1e-5}) == "");
        }
        cpu::release_isa();
    }
}

TEST_CASE("means of many pixels lose nothing") {
    for (Device device : devices()) {
        const Tensor x = full({1, 64, 65, 3}, 1.0, {.dtype = bfloat16, .device = device});
        CHECK(doubles(adaptive_avg_pool2d(x, 1)) == std::vector<double>(3, 1.0));
        const Tensor large = full({1, 8, 8, 3}, 60000, {.dtype = float16, .device = device});
        // One chain would be off by 1e-3: half of each addend is lost towards the end.
        const Tensor line = full({1, 200000, 1}, 1 + 0x1p-8, {.device = device});
        CHECK(difference(doubles(avg_pool1d(line, {.kernel_size = 199999})), std::vector<double>{1 + 0x1p-8},
                         {5e-5, 0}) == "");
        CHECK(doubles(avg_pool2d(large, {.kernel_size = 8})) == doubles(large.slice(1, 0, 1).slice(2, 0, 1)));
    }
}

TEST_CASE("pools and resizing refuse what does not fit") {
    const Tensor x = zeros({2, 5, 6, 3});
    const auto value = ErrorKind::value, shape = ErrorKind::shape;
    check_error(
        [&] {
            (void)max_pool2d(zeros({5, 6, 3}), {.kernel_size = 2});
        },
        shape,
        {"max_pool2d: input [5, 6, 3] has 3 dimensions, not 4; images are", "unsqueeze(-1) adds a channel"});
    // An image in PyTorch's order: three channels are taken for the height.
    check_error(
        [&] {
            (void)max_pool2d(zeros({2, 3, 32, 32}), {.kernel_size = 7});
        },
        shape, {"max_pool2d", "[7, 7]", "[3, 32]", "permute({0, 2, 3, 1})"});
    check_error([&] { (void)max_pool2d(x, {.kernel_size = 0}); }, value,
                {"max_pool2d", "kernel_size is [0, 0]"});
    check_error([&] { (void)max_pool2d(x, {.kernel_size = {2, -1}}); }, value, {"kernel_size is [2, -1]"});
    check_error([&] { (void)avg_pool2d(x, {.kernel_size = 2, .stride = -1}); }, value,
                {"avg_pool2d", "stride is [-1"});
    check_error([&] { (void)avg_pool2d(x, {.kernel_size = 3, .padding = 2}); }, value,
                {"padding 2", "half of the 3"});
    check_error([&] { (void)max_pool2d(x, {.kernel_size = 2, .dilation = 0}); }, value, {"dilation is [0"});
    check_error([&] { (void)max_pool2d(x, {.kernel_size = std::int64_t(1) << 40}); }, value, {"kernel_size"});
    check_error([&] { (void)max_pool2d(x, {.kernel_size = 0x7fffffff, .padding = 0x3fffffff}); }, value,
                {"2^32 places"});
    check_error([&] { (void)max_pool2d(x.to(int64), {.kernel_size = 2}); }, ErrorKind::dtype,
                {"max_pool2d", "int64"});
    check_error([&] { (void)max_pool2d(zeros({2, 0, 6, 3}), {.kernel_size = 1}); }, shape, {"no pixels"});
    check_error([&] { (void)max_pool2d({}, {.kernel_size = 2}); }, value, {"max_pool2d", "undefined"});
    check_error(
        [&] {
            (void)adaptive_avg_pool2d(x, {0, 3});
        },
        value, {"adaptive_avg_pool2d", "output_size is [0, 3]"});
    check_error(
        [&] {
            (void)adaptive_max_pool2d(zeros({2, 3}), 1);
        },
        shape, {"adaptive_max_pool2d", "[2, 3]"});
    check_error([&] { (void)max_pool1d(x, {.kernel_size = 2}); }, shape, {"max_pool1d", "transpose(1, 2)"});
    check_error(
        [&] {
            (void)avg_pool1d(zeros({2, 5, 3}), {.kernel_size = 7});
        },
        shape, {"avg_pool1d", "does not fit"});
    check_error([&] { (void)interpolate(x, 0); }, value, {"interpolate", "[0, 0]"});
    check_error([&] { (void)interpolate(x, 4, {.align_corners = true}); }, value, {"align_corners"});
    check_error([&] { (void)interpolate(zeros({2, 3}), 4); }, shape, {"interpolate", "2 dimensions"});
}

TEST_CASE("pad refuses what does not fit") {
    const Tensor x = zeros({2, 5, 6, 3});
    const auto value = ErrorKind::value, shape = ErrorKind::shape;
    check_error([&] { (void)pad(x, {{4, 1, 1}}); }, shape, {"pad", "4"});
    check_error([&] { (void)pad(x, {{1, 1, 1}, {-3, 1, 1}}); }, value, {"pad", "listed twice"});
    check_error([&] { (void)pad(x, {{1, -3, -3}}); }, shape, {"pad", "-3", "[2, 5, 6, 3]"});
    check_error([&] { (void)pad(x, {{1, std::numeric_limits<std::int64_t>::max(), 1}}); }, shape, {"2^63"});
    check_error([&] { (void)pad(x, {{1, 5, 0}}, PadMode::reflect); }, value, {"reflect", "5"});
    check_error([&] { (void)pad(x, {{1, 0, 6}}, PadMode::circular); }, value, {"circular", "6"});
    check_error([&] { (void)pad(x, {{1, -3, 3}}, PadMode::circular); }, value, {"circular"});
    check_error([&] { (void)pad(x, {{1, 1, 1}}, PadMode::reflect, 2); }, value, {"value 2"});
    check_error([&] { (void)pad(zeros({0, 2}), {{0, 1, 0}}, PadMode::replicate); }, value, {"replicate"});
    check_error([&] { (void)pad(scalar(1), {{0, 1, 0}}); }, shape, {"0-dim"});
}

TEST_CASE("layers of pooling, resizing and padding call their functions, and print as in PyTorch") {
    const Tensor x = image({2, 5, 6, 3}, 29, 31), line = image({2, 9, 3}, 29, 31);
    const auto same = [](const Tensor& a, const Tensor& b) { return all_close(a, b, 0, 0); };
    const nn::MaxPool2d largest({.kernel_size = 3, .stride = 2, .padding = 1});
    CHECK(same(largest(x), max_pool2d(x, {.kernel_size = 3, .stride = 2, .padding = 1})));
    CHECK(largest.describe() == "kernel_size=3, stride=2, padding=1, dilation=1, ceil_mode=false");
    const nn::AvgPool2d mean({.kernel_size = {2, 3}, .ceil_mode = true, .count_include_pad = false});
    CHECK(same(mean(x), avg_pool2d(x, {.kernel_size = {2, 3}, .ceil_mode = true})));
    CHECK(mean.describe() ==
          "kernel_size=(2, 3), stride=(2, 3), padding=0, ceil_mode=true, count_include_pad=false");
    CHECK(same(nn::MaxPool1d({.kernel_size = 2})(line), max_pool1d(line, {.kernel_size = 2})));
    CHECK(same(nn::AvgPool1d({.kernel_size = 2})(line), avg_pool1d(line, {.kernel_size = 2})));
    CHECK(nn::MaxPool1d({.kernel_size = 2}).describe() ==
          "kernel_size=2, stride=2, padding=0, dilation=1, ceil_mode=false");
    CHECK(same(nn::AdaptiveAvgPool2d(1)(x), adaptive_avg_pool2d(x, 1)));
    CHECK(same(nn::AdaptiveMaxPool2d({2, 4})(x), adaptive_max_pool2d(x, {2, 4})));
    CHECK(same(nn::AdaptiveAvgPool1d(4)(line), adaptive_avg_pool1d(line, 4)));
    CHECK(same(nn::AdaptiveMaxPool1d(4)(line), adaptive_max_pool1d(line, 4)));
    CHECK(nn::AdaptiveAvgPool2d({2, 4}).describe() == "output_size=(2, 4)");
    CHECK(same(nn::Upsample({.scale_factor = 1.5, .mode = bilinear_mode})(x),
               interpolate(x, {.mode = bilinear_mode, .scale_factor = 1.5})));
    CHECK(same(nn::Upsample({.size = {3, 8}})(x), interpolate(x, {3, 8})));
    CHECK(nn::Upsample({.scale_factor = 2}).describe() ==
          "scale_factor=2, mode=nearest, align_corners=false");
    CHECK(same(nn::ZeroPad2d(1)(x), pad(x, {{1, 1, 1}, {2, 1, 1}})));
    CHECK(same(nn::ZeroPad2d({.left = 2, .bottom = -1})(x), pad(x, {{1, 0, -1}, {2, 2, 0}})));
    CHECK(nn::ZeroPad2d({.left = 2}).describe() == "left=2, right=0, top=0, bottom=0");
    check_error([] { nn::Upsample({}); }, ErrorKind::value, {"Upsample", "give one"});
    check_error([] { nn::Upsample({.size = 4, .scale_factor = 2}); }, ErrorKind::value,
                {"Upsample", "give one"});
    check_error([] { nn::Upsample({.size = 4, .scale_factor = -2}); }, ErrorKind::value, {"Upsample"});
    check_error([&] { (void)nn::ZeroPad2d(1)(line); }, ErrorKind::shape, {"ZeroPad2d"});
    check_error([&] { (void)nn::Upsample({.scale_factor = 1e300})(x); }, ErrorKind::value, {"interpolate"});
    check_error([&] { (void)nn::Upsample({.scale_factor = 0.01})(x); }, ErrorKind::value,
                {"interpolate", "[0, 0]"});
}

TEST_CASE("layers of volumes, indices and rearrangements call their functions") {
    const Tensor x = image({2, 4, 6, 4}, 29, 31), block = image({2, 4, 3, 5, 2}, 29, 31);
    const auto same = [](const Tensor& a, const Tensor& b) { return all_close(a, b, 0, 0); };
    const nn::MaxPool2d pool({.kernel_size = 2});
    const Pooled y = pool.with_indices(x);
    CHECK(same(y.values, pool(x)));
    const nn::MaxUnpool2d unpool({.kernel_size = 2});
    CHECK(same(unpool(y.values, y.indices), max_unpool2d(y.values, y.indices, {.kernel_size = 2})));
    CHECK(unpool(y.values, y.indices, {5, 7}).shape() == Shape{2, 5, 7, 4});
    CHECK(unpool.describe() == "kernel_size=2, stride=2, padding=0");
    const nn::MaxPool3d cubes({.kernel_size = {2, 1, 3}});
    CHECK(same(cubes(block), max_pool3d(block, {.kernel_size = {2, 1, 3}})));
    CHECK(cubes.describe() ==
          "kernel_size=(2, 1, 3), stride=(2, 1, 3), padding=0, dilation=1, ceil_mode=false");
    CHECK(same(nn::AvgPool3d({.kernel_size = 2})(block), avg_pool3d(block, {.kernel_size = 2})));
    CHECK(same(nn::AdaptiveAvgPool3d(1)(block), adaptive_avg_pool3d(block, 1)));
    CHECK(same(nn::AdaptiveMaxPool3d({2, 1, 2}).with_indices(block).values,
               adaptive_max_pool3d(block, {2, 1, 2})));
    CHECK(nn::AdaptiveMaxPool3d({2, 1, 2}).describe() == "output_size=(2, 1, 2)");
    CHECK(same(nn::Pad({{1, 2, 1}}, PadMode::reflect)(x), pad(x, {{1, 2, 1}}, PadMode::reflect)));
    CHECK(same(nn::Pad({{2, 1, 0}}, PadMode::constant, 3)(x), pad(x, {{2, 1, 0}}, PadMode::constant, 3)));
    CHECK(same(nn::PixelShuffle(2)(x), pixel_shuffle(x, 2)));
    CHECK(same(nn::PixelUnshuffle(2)(nn::PixelShuffle(2)(x)), x));
    CHECK(nn::PixelShuffle(2).describe() == "upscale_factor=2");
    CHECK(same(nn::ChannelShuffle(2)(x), channel_shuffle(x, 2)));
    const nn::Unfold patches({.kernel_size = 2, .stride = 2});
    CHECK(same(nn::Fold({4, 6}, {.kernel_size = 2, .stride = 2})(patches(x)), x));
    CHECK(patches.describe() == "kernel_size=2, stride=2, padding=0, dilation=1");
    CHECK(same(nn::Upsample({.scale_factor = {2, 1, 1}, .mode = InterpolateMode::trilinear})(block),
               interpolate(block, {8, 3, 5}, {.mode = InterpolateMode::trilinear})));
    CHECK(same(nn::Upsample({.size = 7, .mode = InterpolateMode::linear})(x.select(1, 0)),
               interpolate(x.select(1, 0), 7, {.mode = InterpolateMode::linear})));
    CHECK(same(nn::LocalResponseNorm(3)(x), local_response_norm(x, 3)));

    const nn::BatchNorm3d norm(2);
    CHECK(norm(block).shape() == block.shape());
    nn::InstanceNorm2d instance(4, {.affine = true, .track_running_stats = true});
    CHECK(same(instance(x), instance_norm(x)));
    CHECK(names_of(instance.state_dict()) ==
          std::vector<std::string>{"weight", "bias", "running_mean", "running_var", "num_batches_tracked"});
    CHECK_FALSE(same(instance.running_mean, zeros({4})));
    instance.eval();
    CHECK(
        all_close(instance(x), (x - instance.running_mean) / sqrt(instance.running_var + 1e-5), 1e-5, 1e-5));
    CHECK(instance.type_name() == std::string("InstanceNorm2d"));
    check_error([&] { (void)instance(block); }, ErrorKind::shape, {"InstanceNorm2d", "4 channels"});

    nn::Dropout2d drop(0.5);
    CHECK(drop.to_string() == "Dropout2d(p=0.5)");
    drop.eval();
    CHECK(same(drop(x), x));
    check_error([] { nn::AlphaDropout(2); }, ErrorKind::value, {"Dropout", "2"});
}
