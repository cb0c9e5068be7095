// Convolutions, in addition to op_cases_conv.cpp: PyTorch's values, precision, layouts, errors, sizes of 0.
#include <catch2/catch.hpp>

#include <cmath>
#include <limits>

#include "mezzo/amp.h"
#include "mezzo/autograd.h"
#include "mezzo/image_ops.h"
#include "mezzo/nn.h"
#include "mezzo/optim.h"
#include "tests/reference/conv.h"
#include "tests/support/support.h"

using namespace mezzo;
using Catch::Matchers::Contains;

namespace {

constexpr Dtype low_dtypes[] = {float16, bfloat16};

// The formula waves() of tools/reference_conv.py.
Tensor waves(const Shape& shape, double phase) {
    std::vector<double> values;
    for (std::int64_t i = 0; i < shape.numel(); ++i) values.push_back(std::sin(1.3 * double(i) + phase));
    return Tensor::from(values, shape);
}
Tensor channels_last(const Tensor& x) { return x.permute({0, 2, 3, 1}); }
Tensor channels_first(const Tensor& x) { return x.permute({0, 3, 1, 2}); }
Shape shape_of(const std::int64_t (&sizes)[4]) { return {sizes, 4}; }
Size2d pair_of(const std::int64_t (&numbers)[2]) { return {numbers[0], numbers[1]}; }

void append(std::vector<double>& all, const Tensor& x) {
    const std::vector<double> more = test::doubles(x);
    all.insert(all.end(), more.begin(), more.end());
}

Tensor as_in_pytorch(const reference::Convolution& c, const Tensor& x, const Tensor& weight,
                     const Tensor& bias) {
    const Size2d stride = pair_of(c.stride), padding = pair_of(c.padding), dilation = pair_of(c.dilation);
    const Tensor image = channels_last(x), taps = channels_last(weight);
    if (c.transposed)
        return channels_first(conv_transpose2d(image, taps, bias,
                                               {.stride = stride,
                                                .padding = padding,
                                                .output_padding = pair_of(c.output_padding),
                                                .dilation = dilation,
                                                .groups = c.groups}));
    return channels_first(conv2d(
        image, taps, bias, {.stride = stride, .padding = padding, .dilation = dilation, .groups = c.groups}));
}

Tensor ones_leaf(const Shape& shape, Device device) {
    return ones(shape, {.device = device}).set_requires_grad();
}

}  // namespace

TEST_CASE("convolutions and their gradients are those of PyTorch", "[conv]") {
    for (const Device device : test::devices())
        for (const reference::Convolution& c : reference::convolutions) {
            const auto leaf = [&](const Shape& shape, double phase) {
                return waves(shape, phase).to(device).set_requires_grad();
            };
            CAPTURE(name(device.type()), &c - reference::convolutions);
            const Tensor x = leaf(shape_of(c.x), 0.5), weight = leaf(shape_of(c.weight), 1.5);
            const std::int64_t outs = c.transposed ? c.weight[1] * c.groups : c.weight[0];
            const Tensor bias = c.bias ? leaf({outs}, 2.5) : Tensor();
            const Tensor y = as_in_pytorch(c, x, weight, bias);
            autograd::backward({y}, {.grad_outputs = {waves(y.shape(), 0.25).to(device)}});
            std::vector<double> values;
            append(values, y);
            append(values, x.grad());
            append(values, weight.grad());
            if (c.bias) append(values, bias.grad());
            CHECK(test::difference(values, c.values, {1e-11, 1e-11}) == "");
        }
}

TEST_CASE("convolutions: 601 gradients of one in bfloat16 give 601", "[conv]") {
    for (const Device device : test::devices())
        for (const Dtype low : low_dtypes) {
            const std::int64_t uses = low == bfloat16 ? 601 : 2101;  // no number of the dtype
            CAPTURE(name(device.type()), name(low));
            const Tensor weight = ones_leaf({1, 1, 1, 1}, device), bias = ones_leaf({1}, device);
            const Tensor shared = ones_leaf({1, 1, 1, 1}, device), up_bias = ones_leaf({1}, device);
            {
                const amp::Autocast scope({.device = device.type(), .dtype = low});
                const Tensor y = conv2d(ones({uses, 1, 1, 1}, {.device = device}), weight, bias);
                CHECK(y.dtype() == low);
                autograd::backward({y},
                                   {.grad_outputs = {ones(y.shape(), {.dtype = low, .device = device})}});
                for (std::int64_t i = 0; i < uses; ++i)
                    conv2d(ones({1, 1, 1, 1}, {.device = device}), shared).backward();
                const Tensor up = conv_transpose2d(ones({uses, 1, 1, 1}, {.device = device}),
                                                   ones({1, 1, 1, 1}, {.device = device}), up_bias);
                autograd::backward({up},
                                   {.grad_outputs = {ones(up.shape(), {.dtype = low, .device = device})}});
            }
            CHECK(weight.grad().dtype() == float32);
            CHECK(weight.grad().item<double>() == double(uses));
            CHECK(bias.grad().item<double>() == double(uses));
            CHECK(shared.grad().item<double>() == double(uses));
            CHECK(up_bias.grad().item<double>() == double(uses));
        }
}

TEST_CASE("convolutions add a weight's gradients in float32, wherever it is used", "[conv]") {
    for (const Device device : test::devices()) {
        CAPTURE(name(device.type()));
        const Tensor x = waves({2, 5, 4, 3}, 0.5).to(float32).to(device),
                     image = waves({2, 4, 4, 3}, 0.1).to(float32).to(device),
                     weight = waves({3, 3, 3, 3}, 1.5).to(float32).to(device).set_requires_grad();
        const auto loss = [&](const Tensor& w) {
            const Tensor once = conv2d(x, w, {}, {.padding = 1}), twice = conv2d(once, w),
                         back = conv_transpose2d(image, w, {}, {.stride = 2});
            return sum(square(twice)) + sum(square(back));
        };
        loss(weight).backward();
        const Tensor once = weight.grad().clone();
        loss(weight).backward();  // accumulated in the gradient if a kernel can
        CHECK(test::difference(test::doubles(weight.grad()), test::doubles(once * 2.0), {1e-5, 1e-4}) == "");
        const Tensor exact = weight.detach().to(float64).set_requires_grad();
        const auto in_float64 = [&] {
            const Tensor a = x.to(float64), b = image.to(float64);
            const Tensor y = conv2d(conv2d(a, exact, {}, {.padding = 1}), exact),
                         z = conv_transpose2d(b, exact, {}, {.stride = 2});
            return sum(square(y)) + sum(square(z));
        };
        in_float64().backward();
        CHECK(test::difference(test::doubles(once), test::doubles(exact.grad()), {1e-4, 1e-3}) == "");
    }
}

TEST_CASE("convolutions run in the scope's dtype under autocast", "[conv]") {
    for (const Device device : test::devices())
        for (const Dtype low : low_dtypes) {
            const TensorOptions on{.device = device};
            const Tensor x = ones({1, 3, 4, 2}, on), weight = ones({5, 3, 3, 2}, on), bias = ones({5}, on);
            const amp::Autocast scope({.device = device.type(), .dtype = low});
            CHECK(conv2d(x, weight, bias).dtype() == low);
            CHECK(conv1d(x.squeeze(0), weight.select(1, 0), bias).dtype() == low);
            const Tensor narrow = ones({2, 3, 3, 5}, on);
            CHECK(conv_transpose2d(x, narrow, bias).dtype() == low);
            CHECK(test::doubles(conv2d(x.to(low), weight, bias)) == std::vector<double>(10, 19));
        }
}

TEST_CASE("a scaled step is skipped for an inf in one filter", "[conv]") {
    for (const Device device : test::devices()) {
        CAPTURE(name(device.type()));
        const Tensor weight = (ones({4, 3, 3, 2}, {.device = device}) * 0.5).set_requires_grad();
        optim::SGD sgd({weight}, {.lr = 0.5});
        amp::GradScaler scaler({.init_scale = 4});
        const auto step = [&](float pixel) {
            Tensor g = ones({1, 2, 2, 4}, {.device = device});
            g.select(-1, 2).fill_(pixel);
            const Tensor x = ones({1, 4, 4, 2}, {.device = device});
            Tensor loss;
            {
                const amp::Autocast scope({.device = device.type(), .dtype = float16});
                loss = sum(conv2d(x, weight).to(float32) * g);
            }
            scaler.scale(loss).backward();
            scaler.step(sgd);
            scaler.update();
            sgd.zero_grad();
        };
        step(60000);  // times the scale it is beyond float16
        CHECK(test::doubles(weight) == std::vector<double>(72, 0.5));
        CHECK(scaler.get_scale() == 2);
        step(1);
        CHECK(test::doubles(weight) == std::vector<double>(72, 0.5 - 0.5 * 4));
    }
}

TEST_CASE("convolutions of no images and of no channels", "[conv]") {
    for (const Device device : test::devices()) {
        CAPTURE(name(device.type()));
        const auto leaf = [&](const Shape& shape) { return ones_leaf(shape, device); };
        const Tensor none = leaf({0, 5, 4, 3}), weight = leaf({2, 3, 3, 3}), bias = leaf({2});
        const Tensor y = conv2d(none, weight, bias, {.stride = 2, .padding = 1});
        CHECK(y.shape() == Shape{0, 3, 2, 2});
        sum(y).backward();
        CHECK(none.grad().shape() == none.shape());
        CHECK(test::doubles(weight.grad()) == std::vector<double>(54, 0));
        CHECK(test::doubles(bias.grad()) == std::vector<double>(2, 0));

        const Tensor empty_image = leaf({2, 3, 3, 0}), empty_weight = leaf({2, 3, 3, 0});
        const Tensor only_bias = conv2d(empty_image, empty_weight, bias);
        CHECK(test::doubles(only_bias) == std::vector<double>(4, 1));
        sum(only_bias).backward();
        CHECK(test::doubles(bias.grad()) == std::vector<double>(2, 2));
        CHECK(conv2d(leaf({2, 3, 3, 4}), leaf({0, 3, 3, 4})).shape() == Shape{2, 1, 1, 0});
        // An image without rows is padding.
        CHECK(test::doubles(conv2d(leaf({1, 0, 3, 1}), leaf({1, 3, 3, 1}), {}, {.padding = {2, 0}})) ==
              std::vector<double>(2, 0));
        const Tensor up = conv_transpose2d(leaf({0, 2, 2, 3}), leaf({3, 2, 2, 4}), {}, {.stride = 2});
        CHECK(up.shape() == Shape{0, 4, 4, 4});
        CHECK(conv1d(leaf({0, 7, 3}), leaf({5, 3, 3})).shape() == Shape{0, 5, 5});
    }
}

TEST_CASE("a convolution reads any strides, and keeps a view's gradient", "[conv]") {
    for (const Device device : test::devices())
        for (const Dtype dtype : {float32, float16, bfloat16}) {
            CAPTURE(name(device.type()), name(dtype));
            const Tensor planes = waves({2, 3, 6, 5}, 0.5).to(dtype).to(device).set_requires_grad();
            const Tensor weight = waves({4, 3, 3, 3}, 1.5).to(dtype).to(device).set_requires_grad();
            const Tensor copy = channels_last(planes).contiguous().detach().set_requires_grad();
            const Tensor from_view = conv2d(channels_last(planes), channels_last(weight), {}, {.padding = 1}),
                         from_copy = conv2d(copy, channels_last(weight).contiguous(), {}, {.padding = 1});
            CHECK(test::doubles(from_view) == test::doubles(from_copy));
            sum(square(from_view)).backward();
            sum(square(from_copy)).backward();
            CHECK(test::doubles(channels_last(planes.grad())) == test::doubles(copy.grad()));
            // Every second column of a wider image, and one picture for the whole batch.
            const Tensor wide = stack({copy.detach(), copy.detach()}, 3).flatten(2, 3).slice(2, 0, 10, 2);
            CHECK(test::doubles(conv2d(wide, channels_last(weight), {}, {.padding = 1})) ==
                  test::doubles(from_copy));
            const Tensor one = copy.detach().slice(0, 0, 1);
            const Tensor repeated = conv2d(one.expand({3, 6, 5, 3}), channels_last(weight));
            // A GEMM library may add the terms of products of another size in another order.
            const double rounding = device == cpu_device ? 0 : dtype == float32 ? 1e-6 : 1e-2;
            CHECK(test::difference(test::doubles(repeated.slice(0, 2, 3)),
                                   test::doubles(conv2d(one, channels_last(weight))),
                                   {rounding, rounding}) == "");
        }
}

TEST_CASE("a checkpointed convolution has the same gradients", "[conv]") {
    for (const Device device : test::devices())
        for (const bool scoped : {false, true}) {
            const Tensor x = waves({2, 5, 4, 3}, 0.5).to(float32).to(device).set_requires_grad(),
                         weight = waves({3, 3, 3, 3}, 1.5).to(float32).to(device).set_requires_grad();
            const auto two = [&](const Tensors& in) {
                return Tensors{conv2d(relu(conv2d(in[0], weight, {}, {.padding = 1})), weight)};
            };
            std::vector<double> values[2];
            for (const bool kept : {true, false}) {
                const amp::Autocast scope({.device = device.type(), .dtype = bfloat16, .enabled = scoped});
                const Tensor y = kept ? two({x})[0] : autograd::checkpoint(two, {x})[0];
                sum(square(y.to(float32))).backward();
                for (const Tensor& leaf : {x, weight}) {
                    append(values[kept], leaf.grad());
                    leaf.set_grad({});
                }
            }
            CHECK(values[0] == values[1]);
        }
}

TEST_CASE("the errors of convolutions say what to do", "[conv]") {
    const Tensor x = ones({2, 8, 7, 6}), weight = ones({4, 3, 3, 6}), bias = ones({4});
    const auto text = [](const auto& f, ErrorKind kind) -> std::string {
        try {
            (void)f();
        } catch (const Error& e) {
            CHECK(e.kind() == kind);
            return e.what();
        }
        return "no error";
    };
    const auto shape_error = [&](const auto& f) { return text(f, ErrorKind::shape); };
    const auto value_error = [&](const auto& f) { return text(f, ErrorKind::value); };
    CHECK(shape_error([] {
              return conv2d(ones({128, 3, 32, 32}), ones({64, 3, 3, 3}));
          }) ==
          "conv2d: input [128, 3, 32, 32] has 32 channels in its last dimension, but weight [64, 3, 3, 3] "
          "reads 3; images are [batch, height, width, channels]: x.permute({0, 2, 3, 1})");
    CHECK_THAT(shape_error([] {
                   return conv2d(ones({2, 16, 9, 9}), ones({8, 16, 3, 3}));
               }),
               Contains("PyTorch's input and weight become mezzo's by permute({0, 2, 3, 1})"));
    CHECK_THAT(shape_error([] {
                   return conv1d(ones({2, 3, 50}), ones({8, 5, 3}));
               }),
               Contains("conv1d: input [2, 3, 50]") &&
                   Contains("signals are [batch, length, channels]: x.permute({0, 2, 1})"));
    CHECK_THAT(
        shape_error([&] { return conv2d(x[0], weight); }),
        Contains("input [8, 7, 6] is not [batch, height, width, channels]; unsqueeze(0) makes a batch of "
                 "one, unsqueeze(-1) adds a channel"));
    CHECK_THAT(shape_error([&] {
                   return conv2d(x, ones({4, 54}));
               }),
               Contains("weight [4, 54] is not [out, kernel height, kernel width, in / groups]"));
    CHECK_THAT(shape_error([&] { return conv2d(x, ones({4, 0, 3, 6})); }), Contains("has no taps"));
    CHECK_THAT(shape_error([&] { return conv2d(x, weight, ones({5})); }),
               Contains("bias [5] does not fit a result with 4 channels"));
    CHECK_THAT(shape_error([&] {
                   return conv2d(x, ones({4, 3, 3, 2}), {}, {.groups = 3});
               }),
               Contains("3 groups do not divide the 4 channels of the result"));
    CHECK_THAT(shape_error([&] { return conv2d(x, weight, {}, {.groups = 2}); }),
               Contains("has 6 channels") && Contains("reads 12"));
    CHECK_THAT(shape_error([&] {
                   return conv2d(x, ones({4, 9, 3, 6}));
               }),
               Contains("a kernel of 9 with dilation 1 does not fit into height 8 with padding 0"));
    CHECK_THAT(shape_error([&] {
                   return conv2d(x, ones({4, 9, 3, 6}), {}, {.stride = 3});
               }),
               Contains("a kernel of 9"));
    CHECK_THAT(shape_error([&] {
                   return conv2d(x, weight, {}, {.dilation = {1, 4}});
               }),
               Contains("a kernel of 3 with dilation 4 does not fit into width 7"));
    CHECK_THAT(value_error([&] {
                   return conv2d(x, weight, {}, {.stride = {1, 0}});
               }),
               Contains("stride 0 is not in [1, 2147483647]"));
    CHECK_THAT(value_error([&] { return conv2d(x, weight, {}, {.padding = -1}); }),
               Contains("padding -1 is not in [0, 2147483647]"));
    CHECK_THAT(value_error([&] { return conv2d(x, weight, {}, {.dilation = 0}); }),
               Contains("dilation 0 is not in [1"));
    CHECK_THAT(value_error([&] { return conv2d(x, weight, {}, {.groups = 0}); }),
               Contains("groups 0 is not in [1"));
    CHECK_THAT(value_error([&] { return conv2d({}, weight); }), Contains("conv2d: "));
    CHECK_THAT(text([&] { return conv2d(x.to(float16), weight); }, ErrorKind::dtype),
               Contains("float16 and float32"));
    CHECK_THAT(text([&] { return conv2d(x.to(uint8), weight); }, ErrorKind::dtype), Contains("uint8"));
    CHECK_THAT(text([&] { return conv2d(x, weight, bias.to(float64)); }, ErrorKind::dtype),
               Contains("float64"));
    CHECK_THAT(shape_error([] {
                   return conv_transpose2d(ones({2, 3, 9, 9}), ones({3, 2, 2, 4}));
               }),
               Contains("conv_transpose2d: input [2, 3, 9, 9] has 9 channels in its last dimension"));
    CHECK_THAT(shape_error([&] {
                   return conv_transpose2d(x, ones({6, 2, 2, 4}), bias, {.groups = 2});
               }),
               Contains("bias [4] does not fit a result with 8 channels"));
    CHECK_THAT(shape_error([&] {
                   return conv_transpose2d(x, ones({6, 2, 2, 4}), {}, {.groups = 4});
               }),
               Contains("4 groups do not divide the 6 channels of the input"));
    CHECK_THAT(value_error([&] {
                   return conv_transpose2d(x, ones({6, 2, 2, 4}), {}, {.stride = 2, .output_padding = 2});
               }),
               Contains("output_padding 2 is not in [0, 2)"));
    CHECK_THAT(shape_error([&] {
                   return conv_transpose2d(x, ones({6, 1, 1, 4}), {}, {.padding = 4});
               }),
               Contains("gives a result of height 0"));
}

TEST_CASE("convolutions with numbers at and beyond the limits", "[conv]") {
    const std::int64_t huge = std::numeric_limits<std::int64_t>::max(), most = 0x7fffffff;
    const Tensor x = ones({1, 3, 3, 1}), weight = ones({1, 2, 2, 1}), point = ones({1, 1, 1, 1});
    for (const std::int64_t beyond : {most + 1, huge / 4, huge}) {
        CHECK_THROWS_AS(conv2d(x, weight, {}, {.stride = beyond}), Error);
        CHECK_THROWS_AS(conv2d(x, weight, {}, {.padding = beyond}), Error);
        CHECK_THROWS_AS(conv2d(x, weight, {}, {.dilation = beyond}), Error);
        CHECK_THROWS_AS(conv2d(x, weight, {}, {.groups = beyond}), Error);
        CHECK_THROWS_AS(conv1d(x.squeeze(0), weight.select(1, 0), {}, {.padding = beyond}), Error);
        CHECK_THROWS_AS(conv_transpose2d(x, weight, {}, {.stride = beyond}), Error);
        CHECK_THROWS_AS(conv_transpose2d(x, weight, {}, {.padding = beyond}), Error);
        CHECK_THROWS_AS(conv_transpose2d(x, weight, {}, {.output_padding = beyond - 1, .dilation = beyond}),
                        Error);
    }
    for (const Device device : test::devices()) {
        CAPTURE(name(device.type()));
        const Tensor image = x.detach().to(device).set_requires_grad(), taps = weight.to(device);
        const Tensor y = conv2d(image, taps, {}, {.stride = most});
        CHECK(y.item<float>() == 4);
        y.backward();
        CHECK(test::doubles(image.grad()) == std::vector<double>{1, 1, 0, 1, 1, 0, 0, 0, 0});
        CHECK(test::doubles(conv2d(image, point.to(device), {}, {.dilation = most})) ==
              std::vector<double>(9, 1));
        // The whole batch is one pixel: sizes beyond memory are refused before anything is computed.
        CHECK_THROWS_AS(conv_transpose2d(image, taps, {}, {.stride = most}), Error);
    }
    // A result of 2^91 rows.
    const Tensor row = ones({1, 1, 1, 1}).expand({1, std::int64_t(1) << 60, 1, 1});
    CHECK_THROWS_AS(conv_transpose2d(row, point, {}, {.stride = most}), Error);
    CHECK_THROWS_AS(conv2d(x, ones({1, 1, 1, 1}).expand({1, huge / 8, 1, 1}), {}, {.dilation = most}), Error);
}

TEST_CASE("a transposed convolution with a bias is rounded once", "[conv]") {
    manual_seed(1);
    const Tensor x = randn({2, 6, 6, 8}), w = randn({8, 3, 3, 8});
    for (const Device device : test::devices())
        for (const Dtype dtype : low_dtypes)
            for (const int groups : {1, 4})
                for (ConvTranspose2dOptions options :
                     {ConvTranspose2dOptions{.stride = 2}, ConvTranspose2dOptions{.stride = 4},
                      ConvTranspose2dOptions{.padding = 1}}) {
                    options.groups = groups;
                    const Tensor b = randn({8 * groups}) * 10.0;
                    const auto run = [&](Dtype t, Device where) {
                        const auto of = [&](const Tensor& v) { return v.to(dtype).to(t).to(where); };
                        return conv_transpose2d(of(x), of(w), of(b), options);
                    };
                    const std::vector<double> got = test::doubles(run(dtype, device)),
                                              want = test::doubles(run(float64, cpu_device).to(dtype));
                    std::size_t off = 0;
                    for (std::size_t i = 0; i < got.size(); ++i) off += got[i] != want[i];
                    // The sums are float32: next to the middle of two numbers of the dtype either is right.
                    CHECK(off <= got.size() / 100);
                }
}

TEST_CASE("the bias of a transposed convolution", "[conv]") {
    for (const Device device : test::devices())
        for (const bool autocast : {false, true})
            for (const Dtype dtype : {float32, float64, float16}) {
                if (autocast && dtype != float32) continue;
                const TensorOptions on{.dtype = dtype, .device = device};
                const Tensor x = ones({2, 3, 3, 4}, on), w = ones({4, 1, 1, 5}, on),
                             b = full({5}, 3, on).set_requires_grad();
                Tensor y;
                {
                    const amp::Autocast scope(
                        {.device = device.type(), .dtype = float16, .enabled = autocast});
                    y = conv_transpose2d(x, w, b, {.stride = 2});
                }
                CHECK(y.dtype() == (autocast ? float16 : dtype));
                const std::vector<double> values = test::doubles(y);  // [2, 5, 5, 5], 3 where no window reads
                CHECK(values[0] == 7);
                CHECK(values[5] == 3);
                CHECK(values[30] == 3);
                sum(y).backward();
                CHECK(b.grad().dtype() == dtype);
                CHECK(test::doubles(b.grad()) == std::vector<double>(5, 2 * 5 * 5));
            }
}

TEST_CASE("conv2d_add_relu rounds once", "[conv]") {
    struct Case {
        Shape x, weight;
        Conv2dOptions options;
    };
    const Case cases[] = {{{2, 9, 17, 40}, {50, 3, 3, 40}, {.padding = 1}},
                          {{2, 8, 16, 64}, {64, 3, 3, 64}, {.padding = 1}},
                          {{3, 8, 9, 64}, {72, 1, 1, 64}, {}},
                          {{2, 8, 8, 64}, {32, 1, 1, 64}, {.stride = 2}},
                          {{1, 3, 2, 600}, {33, 3, 2, 600}, {}},
                          {{2, 6, 7, 64}, {64, 3, 3, 32}, {.padding = 1, .groups = 2}},
                          {{2, 6, 7, 12}, {12, 3, 3, 1}, {.padding = 1, .groups = 12}},
                          {{1, 2, 2, 3}, {4, 1, 1, 3}, {}}};
    for (const Case& c : cases)
        for (const Dtype dtype : {float32, float64, float16, bfloat16})
            for (const bool residual : {false, true}) {
                CAPTURE(c.x, c.weight, name(dtype), residual);
                const Tensor x = randn(c.x).to(dtype), w = (randn(c.weight) * 0.1).to(dtype),
                             b = randn({c.weight[0]}).to(dtype);
                const Tensor wide = conv2d(x.to(float64), w.to(float64), b.to(float64), c.options);
                const Tensor r = residual ? randn(wide.shape()).to(dtype) : Tensor();
                const Tensor want = relu(residual ? wide + r.to(float64) : wide);
                const Tensor got = conv2d_add_relu(x, w, b, r, c.options);
                CHECK(got.dtype() == dtype);
                const Tensor off = ne(got.to(float64), want.to(dtype).to(float64));
                if (is_16bit(dtype)) CHECK(sum(off.to(int64)).item<std::int64_t>() <= got.numel() / 100 + 1);
                const double largest = max(abs(want)).item<double>();
                CHECK(max(abs(got.to(float64) - want)).item<double>() <=
                      dtype_info(dtype).epsilon * largest * 16);
                CHECK(min(got).item<double>() == 0);
            }
}

TEST_CASE("conv2d_add_relu wants a residual of its input's dtype", "[conv]") {
    const bool recorded = GENERATE(false, true);
    const Tensor x = randn({1, 2, 2, 3}), w = randn({4, 3, 1, 1}).reshape({4, 1, 1, 3});
    if (recorded) x.set_requires_grad();
    const Tensor r = randn({1, 2, 2, 4});
    for (const Dtype dtype : {uint8, boolean, int64, bfloat16, float64}) {
        CAPTURE(name(dtype));
        CHECK_THROWS_WITH(conv2d_add_relu(x, w, {}, r.to(dtype)),
                          Contains("conv2d_add_relu: input is float32, the residual " +
                                   std::string(name(dtype)) + "; convert one with to()"));
    }
    CHECK_THROWS_WITH(conv2d_add_relu(x, w, {}, r, {.stride = 0}), Contains("conv2d_add_relu: stride 0"));
    const amp::Autocast scope({.dtype = bfloat16});
    CHECK(conv2d_add_relu(x, w, {}, r.to(bfloat16)).dtype() == bfloat16);
    CHECK_THROWS_WITH(conv2d_add_relu(x, w, {}, r.to(int32)), Contains("the residual int32"));
}

TEST_CASE("conv2d_add_relu has gradients, and checks its residual", "[conv]") {
    const Tensor x = randn({2, 4, 5, 3}).set_requires_grad(), w = randn({6, 3, 3, 3}).set_requires_grad(),
                 r = randn({2, 4, 5, 6}).set_requires_grad();
    const auto gradients = [&](const Tensor& y) { return autograd::grad({sum(y * y)}, {x, w, r}); };
    const Tensors got = gradients(conv2d_add_relu(x, w, {}, r, {.padding = 1})),
                  want = gradients(relu(conv2d(x, w, {}, {.padding = 1}) + r));
    for (std::size_t i = 0; i < want.size(); ++i) CHECK(test::doubles(got[i]) == test::doubles(want[i]));
    CHECK_THROWS_WITH(conv2d_add_relu(x, w, {}, r),
                      Contains("conv2d_add_relu: residual [2, 4, 5, 6] is not [2, 2, 3, 6] as the result"));
    const NoGrad plain;
    CHECK_THROWS_WITH(conv2d_add_relu(x, w, {}, r),
                      Contains("conv2d_add_relu: residual [2, 4, 5, 6] is not [2, 2, 3, 6] as the result"));
}
