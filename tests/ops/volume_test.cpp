// Volumes, indices of max pools, unfolding, sampling and dropouts of channels: PyTorch's values, edges of the
// options, errors.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <limits>

#include "mezzo/autocast.h"
#include "mezzo/autograd.h"
#include "mezzo/error.h"
#include "mezzo/image_ops.h"
#include "mezzo/reduce_ops.h"
#include "mezzo/shape_ops.h"
#include "tests/reference/volumes.h"
#include "tests/support/support.h"

using namespace mezzo;
using namespace mezzo::test;

namespace {

using enum InterpolateMode;
constexpr double inf = std::numeric_limits<double>::infinity();

// The formula values() of tools/reference_volumes.py.
Tensor numbers(const Shape& shape, std::int64_t step, std::int64_t modulus) {
    std::vector<double> values;
    for (std::int64_t i = 0; i < shape.numel(); ++i)
        values.push_back(double((i * step + 3) % modulus - modulus / 2) / 8);
    return Tensor::from(values, shape);
}

const Shape volume{1, 3, 4, 3, 2}, image{1, 4, 5, 2}, line{1, 7, 2};

// Positions in the dtype and on the device of x.
Tensor grid_for(const Tensor& x, const Shape& shape) {
    return (numbers(shape, 7, 23) * 1.05).to(x.dtype()).to(x.device());
}

struct Golden {
    const char* name;
    Tensor (*function)(const Tensors& x);
    std::vector<Shape> inputs;
    std::span<const std::int64_t> shape;
    std::span<const double> value, gradient;
};
#define GOLDEN(name, call, ...)                                                                    \
    Golden {                                                                                       \
#name, [](const Tensors& x) -> Tensor { return call; }, {__VA_ARGS__ },                    \
                                                                 volume_reference::name##_shape,   \
                                                                 volume_reference::name##_value,   \
                                                                 volume_reference::name##_gradient \
    }

#define GRID(kind, pad_name, pad_mode, corners)                                                            \
    GOLDEN(                                                                                                \
        grid_##kind##_##pad_name,                                                                          \
        grid_sample(                                                                                       \
            x[0], grid_for(x[0], {1, 3, 2, 2}),                                                            \
            {.mode = InterpolateMode::kind, .padding_mode = PadMode::pad_mode, .align_corners = corners}), \
        image)

const std::vector<Golden>& goldens() {
    static const std::vector<Golden> all{
        GOLDEN(conv3d,
               conv3d(x[0], x[1], x[2], {.stride = {2, 1, 1}, .padding = {1, 0, 1}, .dilation = {1, 2, 1}}),
               volume, Shape{2, 2, 2, 3, 2}, Shape{2}),
        GOLDEN(conv3d_same, conv3d(x[0], x[1], x[2], {.padding = same_padding}), volume, Shape{2, 2, 3, 2, 2},
               Shape{2}),
        GOLDEN(conv_transpose3d,
               conv_transpose3d(x[0], x[1], x[2],
                                {.stride = 2, .padding = {1, 0, 1}, .output_padding = {1, 0, 1}}),
               volume, Shape{2, 3, 2, 2, 2}, Shape{2}),
        GOLDEN(conv_transpose1d,
               conv_transpose1d(x[0], x[1], x[2], {.stride = 2, .padding = 1, .output_padding = 1}), line,
               Shape{2, 3, 2}, Shape{2}),
        GOLDEN(max_3d,
               max_pool3d(
                   x[0],
                   {.kernel_size = {2, 3, 2}, .stride = {1, 2, 1}, .padding = {1, 1, 0}, .ceil_mode = true}),
               volume),
        GOLDEN(avg_3d,
               avg_pool3d(
                   x[0],
                   {.kernel_size = {2, 3, 2}, .stride = {1, 2, 2}, .padding = {1, 1, 0}, .ceil_mode = true}),
               volume),
        GOLDEN(avg_3d_divisor, avg_pool3d(x[0], {.kernel_size = 2, .ceil_mode = true, .divisor_override = 3}),
               volume),
        GOLDEN(adaptive_avg_3d, adaptive_avg_pool3d(x[0], {2, 3, 2}), volume),
        GOLDEN(adaptive_max_3d, adaptive_max_pool3d(x[0], {2, 3, 2}), volume),
        GOLDEN(unfold,
               unfold(x[0], {.kernel_size = {2, 3}, .dilation = {2, 1}, .padding = {1, 0}, .stride = {1, 2}}),
               image),
        GOLDEN(fold, fold(x[0], {4, 5}, {.kernel_size = 2}), Shape{1, 12, 8}),
        GRID(bilinear, zeros, constant, false),
        GRID(bilinear, border, replicate, true),
        GRID(bilinear, reflection, reflect, false),
        GRID(nearest, zeros, constant, false),
        GRID(nearest, border, replicate, true),
        GRID(nearest, reflection, reflect, false),
        GRID(bicubic, zeros, constant, false),
        GRID(bicubic, border, replicate, true),
        GRID(bicubic, reflection, reflect, false),
        GOLDEN(grid_volume, grid_sample(x[0], grid_for(x[0], {1, 2, 2, 2, 3})), volume),
        GOLDEN(grid_gradient,
               grid_sample(numbers(image, 11, 29).to(x[0].dtype()).to(x[0].device()), x[0] * 0.9 + 0.01,
                           {.mode = bicubic}),
               Shape{1, 2, 3, 2}),
        GOLDEN(affine_grid, affine_grid(x[0], {1, 3, 4, 2}), Shape{1, 2, 3}),
        GOLDEN(bicubic, interpolate(x[0], {7, 3}, {.mode = bicubic}), image),
        GOLDEN(bilinear_factor,
               interpolate(x[0], {.mode = InterpolateMode::bilinear, .scale_factor = {1.7, 0.6}}), image),
        GOLDEN(linear, interpolate(x[0], 10, {.mode = linear, .align_corners = true}), line),
        GOLDEN(trilinear, interpolate(x[0], {2, 5, 4}, {.mode = trilinear}), volume),
        GOLDEN(nearest_exact, interpolate(x[0], {3, 8}, {.mode = nearest_exact}), image),
        GOLDEN(response, local_response_norm(x[0], 3, {.alpha = 0.5, .beta = 0.6, .k = 1.5}),
               Shape{1, 2, 2, 5}),
        GOLDEN(instance, instance_norm(x[0]), image),
    };
    return all;
}

void check_error(const auto& f, ErrorKind kind, std::initializer_list<const char*> words) {
    try {
        f();
        FAIL_CHECK("no error");
    } catch (const Error& e) {
        const std::string text = e.what();
        CAPTURE(text);
        CHECK(e.kind() == kind);
        for (const char* word : words) CHECK(text.find(word) != std::string::npos);
    }
}

std::vector<std::int64_t> integers(const Tensor& x) { return x.to_vector<std::int64_t>(); }

}  // namespace

TEST_CASE("volumes, unfolding and sampling agree with PyTorch") {
    for (const Golden& golden : goldens())
        for (Device device : devices())
            for (Dtype dtype : {float64, float32}) {
                CAPTURE(golden.name, name(device.type()), name(dtype));
                Tensors x;
                for (std::size_t i = 0; i < golden.inputs.size(); ++i)
                    x.push_back(numbers(golden.inputs[i], 29 + 2 * std::int64_t(i), 31)
                                    .to(dtype)
                                    .to(device)
                                    .set_requires_grad());
                const Tensor y = golden.function(x);
                CHECK(y.shape() == Shape(golden.shape.data(), int(golden.shape.size())));
                const Tolerance allowed = dtype == float64 ? Tolerance{1e-6, 1e-7} : Tolerance{1e-5, 2e-5};
                CHECK(difference(doubles(y), golden.value, allowed) == "");
                y.backward({.gradient = numbers(y.shape(), 13, 17).to(dtype).to(device)});
                std::vector<double> gradients;
                for (const Tensor& input : x)
                    for (const double g : doubles(input.grad())) gradients.push_back(g);
                CHECK(difference(gradients, golden.gradient, allowed) == "");
            }
}

TEST_CASE("max pools give the indices of the first largest elements, or of the last NaN") {
    const double nan = std::nan("");
    for (Device device : devices())
        for (Dtype dtype : {float32, float16, float64}) {
            CAPTURE(name(device.type()), name(dtype));
            const Tensor x = tensor_of({1, 3, 3, 2, 3, 0, nan, 1, nan}, {1, 3, 3, 1}, dtype, device);
            const Pooled y = max_pool2d_with_indices(x, {.kernel_size = 2, .stride = 1});
            CHECK(y.values.dtype() == dtype);
            CHECK(integers(y.indices) == std::vector<std::int64_t>{1, 1, 6, 8});
            const Tensor lowest = full({1, 2, 2, 1}, -inf, {.dtype = dtype, .device = device});
            CHECK(integers(max_pool2d_with_indices(lowest, {.kernel_size = 3, .stride = 2, .padding = 1})
                               .indices) == std::vector<std::int64_t>{0});
            // [depth, height, width]: the largest of four equal ones is in the first slice.
            const Tensor block = tensor_of({0, 5, 1, 5, 5, 0, 5, 2}, {1, 2, 2, 2, 1}, dtype, device);
            CHECK(integers(max_pool3d_with_indices(block, {.kernel_size = 2}).indices) ==
                  std::vector<std::int64_t>{1});
            CHECK(integers(adaptive_max_pool3d_with_indices(block, {2, 1, 1}).indices) ==
                  std::vector<std::int64_t>{1, 4});
            CHECK(
                integers(max_pool1d_with_indices(block.reshape({1, 8, 1}), {.kernel_size = 3, .dilation = 2})
                             .indices) == std::vector<std::int64_t>{4, 3});
        }
    // Windows of more positions than a byte numbers.
    const Tensor wide = arange(40 * 20).reshape({1, 40, 20, 1}).to(float32);
    CHECK(integers(max_pool2d_with_indices(wide, {.kernel_size = {39, 19}, .stride = 1}).indices) ==
          std::vector<std::int64_t>{778, 779, 798, 799});
    const ByDecomposition plainly;
    CHECK(integers(max_pool2d_with_indices(wide, {.kernel_size = {39, 19}, .stride = 1}).indices) ==
          std::vector<std::int64_t>{778, 779, 798, 799});
}

TEST_CASE("max_unpool puts elements back, and each gets the gradient of its place") {
    for (Device device : devices())
        for (Dtype dtype : {float32, bfloat16}) {
            const Tensor x = numbers({2, 5, 6, 3}, 29, 31).to(dtype).to(device);
            // Overlapping windows: elements that several windows found occur once.
            const Pooled y = max_pool2d_with_indices(x, {.kernel_size = 3, .stride = 2, .padding = 1});
            const Tensor v = y.values.detach().set_requires_grad();
            const Tensor back = max_unpool2d(
                v, y.indices, {.kernel_size = 3, .stride = 2, .padding = 1, .output_size = {5, 6}});
            CHECK(back.shape() == x.shape());
            CHECK(all(eq(back, 0.0) | eq(back, x)).item<bool>());
            const Tensor again = gather(back.reshape({2, 30, 3}), 1, y.indices.reshape({2, 9, 3}));
            CHECK(all_close(again, y.values.reshape({2, 9, 3}), 0, 0));
            const Tensor g = numbers(back.shape(), 13, 17).to(dtype).to(device);
            back.backward({.gradient = g});
            CHECK(all_close(v.grad().reshape({2, 9, 3}),
                            gather(g.reshape({2, 30, 3}), 1, y.indices.reshape({2, 9, 3})), 0, 0));
        }
    const Tensor x = ones({1, 2, 3}), at = zeros({1, 2, 3}, {.dtype = int64});
    CHECK(max_unpool1d(x, at, {.kernel_size = 3, .stride = 2}).shape() == Shape{1, 5, 3});
    const auto value = ErrorKind::value;
    check_error([&] { (void)max_unpool1d(x, at, {.kernel_size = 2, .output_size = 6}); }, value,
                {"output_size 6"});
    check_error([&] { (void)max_unpool1d(x, at + 4, {.kernel_size = 2}); }, value, {"4"});
    check_error([&] { (void)max_unpool1d(x, at.to(int32), {.kernel_size = 2}); }, ErrorKind::dtype,
                {"int32"});
    check_error([&] { (void)max_unpool2d(x, at, {.kernel_size = 2}); }, ErrorKind::shape,
                {"max_unpool2d", "3"});
}

TEST_CASE("max_unpool refuses an index that was written to since") {
    const Tensor x = numbers({1, 2, 3}, 13, 17).set_requires_grad();
    const Tensor at = arange(2).reshape({1, 2, 1}).expand({1, 2, 3}).contiguous();
    const Tensor y = sum(max_unpool1d(x, at, {.kernel_size = 2}));
    at.fill_(0);
    check_error([&] { y.backward(); }, ErrorKind::state, {"max_unpool1d", "changed in place"});
}

TEST_CASE("a volume's convolution saves what its gradient reads, and no copy of it") {
    const auto written = [](Shape kernel, bool to_weight, bool x_needs, bool weight_needs) {
        const Conv3dOptions strided{.stride = {2, 1, 1}};
        Tensor x = ones({1, 4, 3, 3, 1}), w = ones(kernel);
        x.set_requires_grad(x_needs);
        w.set_requires_grad(weight_needs);
        const Tensor y = sum(conv3d(x, w, {}, kernel[1] == 1 ? strided : Conv3dOptions{}));
        const NoGrad plain;
        (to_weight ? w : x).fill_(100);
        return y;
    };
    const auto refused = [&](Shape kernel, bool to_weight) {
        const Tensor y = written(kernel, to_weight, true, true);
        check_error([&] { y.backward(); }, ErrorKind::state, {"conv3d", "changed in place"});
    };
    // The weights of the first two are views of the given ones.
    for (const Shape& kernel : {Shape{1, 3, 1, 1, 1}, {1, 1, 3, 3, 1}}) refused(kernel, true);
    for (const Shape& kernel : {Shape{1, 3, 1, 1, 1}, {1, 1, 3, 3, 1}, {1, 2, 2, 2, 1}}) {
        refused(kernel, false);
        // The gradient of one operand reads the other only.
        CHECK_NOTHROW(written(kernel, false, true, false).backward());
        CHECK_NOTHROW(written(kernel, true, false, true).backward());
    }
}

TEST_CASE("convolutions of volumes run in the scope's dtype, and their gradients of weights in float32") {
    const Tensor x = ones({1, 3, 2, 2, 1}).set_requires_grad();
    const Tensor w = full({1, 2, 1, 1, 1}, 1.0).set_requires_grad(), b = zeros({1}).set_requires_grad();
    for (const bool transposed : {false, true}) {
        Tensor y;
        {
            const amp::Autocast scope({.dtype = bfloat16});
            y = transposed ? conv_transpose3d(x, w, b) : conv3d(x, w, b);
        }
        CHECK(y.dtype() == bfloat16);
        y.backward({.gradient = full(y.shape(), 601, {.dtype = bfloat16})});
        for (const Tensor& t : {x, w, b}) {
            CHECK(t.grad().dtype() == float32);
            t.set_grad({});
        }
    }
}

TEST_CASE("same_padding keeps sizes, with the odd zero at the end") {
    const Tensor x = Tensor::from({1, 2, 3}, {1, 3, 1}).to(float32);
    CHECK(doubles(conv1d(x, ones({1, 2, 1}), {}, {.padding = same_padding})) == std::vector<double>{3, 5, 3});
    CHECK(doubles(conv1d(x, ones({1, 3, 1}), {}, {.padding = same_padding})) == std::vector<double>{3, 6, 5});
    const Tensor w = ones({2, 3, 3, 1});
    check_error(
        [&] {
            (void)conv2d(ones({1, 5, 5, 1}), w, {}, {.stride = 2, .padding = same_padding});
        },
        ErrorKind::value, {"conv2d", "same_padding", "stride 2"});
    check_error(
        [&] {
            (void)conv_transpose2d(ones({1, 5, 5, 2}), w, {}, {.padding = same_padding});
        },
        ErrorKind::value, {"conv_transpose2d", "padding"});
    check_error(
        [&] {
            (void)conv3d(ones({1, 2, 5, 5}), w);
        },
        ErrorKind::shape, {"conv3d", "[batch, depth, height, width, channels]", "unsqueeze(0)"});
}

TEST_CASE("instance_norm updates running statistics with the means over samples") {
    const Tensor x = numbers({3, 4, 2, 5}, 29, 31).to(float32);
    const Tensor mean_before = full({5}, 0.5), var_before = full({5}, 2.0);
    const Tensor m = mean_before.clone(), v = var_before.clone();
    const Tensor y = instance_norm(x, m, v, {}, {}, {.momentum = 0.25});
    const Tensor rows = x.reshape({3, 8, 5}), average = mean(rows, {1});
    const Tensor variance = sum(square(rows - average.unsqueeze(1)), {1}) / 7.0;
    CHECK(all_close(m, mean_before * 0.75 + mean(average, {0}) * 0.25, 1e-6, 1e-6));
    CHECK(all_close(v, var_before * 0.75 + mean(variance, {0}) * 0.25, 1e-6, 1e-6));
    CHECK(all_close(instance_norm(x, m, v, {}, {}, {.use_input_stats = false}), (x - m) / sqrt(v + 1e-5),
                    1e-5, 1e-5));
    {
        const amp::Autocast scope({.dtype = float16});
        CHECK(instance_norm(x.to(float16)).dtype() == float16);
        CHECK(local_response_norm(x.to(float16), 3).dtype() == float32);
    }
    const auto value = ErrorKind::value;
    check_error([&] { (void)instance_norm(x, {}, {}, {}, {}, {.use_input_stats = false}); }, value,
                {"running"});
    check_error([&] { (void)instance_norm(ones({2, 1, 1, 3})); }, value, {"single value"});
    check_error([&] { (void)instance_norm(x, m); }, value, {"both or neither"});
    check_error([&] { (void)instance_norm(ones({2, 3})); }, ErrorKind::shape, {"instance_norm", "[2, 3]"});
}

TEST_CASE("dropouts of channels drop whole channels of a sample, and scale the others") {
    manual_seed(5);
    for (Device device : devices()) {
        const Tensor x = ones({40, 3, 2, 50}, {.dtype = float16, .device = device}).set_requires_grad();
        const Tensor y = dropout2d(x, 0.25);
        y.backward({.gradient = ones_like(y)});
        CHECK(all_close(y, x.grad(), 0, 0));
        const std::vector<double> flat = doubles(y.reshape({40, 6, 50}).permute({0, 2, 1}));
        int dropped = 0;
        for (std::size_t i = 0; i < flat.size(); i += 6) {
            CHECK(std::equal(flat.begin() + std::ptrdiff_t(i), flat.begin() + std::ptrdiff_t(i + 6),
                             std::vector<double>(6, flat[i]).begin()));
            dropped += flat[i] == 0;
        }
        CHECK(dropped > 400);
        CHECK(dropped < 600);
        CHECK(doubles(max(y))[0] == doubles(scalar(4.0 / 3, {.dtype = float16}))[0]);
        // A dropped infinity is 0, and has the gradient 0.
        const Tensor large = full({1, 1, 1, 200}, inf, {.device = device}).set_requires_grad();
        sum(dropout2d(large, 0.5)).backward();
        CHECK(all(large.grad() == large.grad()).item<bool>());
        CHECK(dropout2d(x, 0.5, false).impl() == x.impl());
        CHECK(doubles(sum(dropout1d(x.squeeze(1).select(1, 0), 1)))[0] == 0);
    }
    check_error([] { (void)dropout3d(ones({2, 3, 4}), 0.5); }, ErrorKind::shape, {"dropout3d", "[2, 3, 4]"});
    check_error([] { (void)dropout1d(ones({2, 3, 4}), 1.5); }, ErrorKind::value, {"dropout1d", "1.5"});
}

TEST_CASE("alpha_dropout keeps mean and variance") {
    manual_seed(7);
    const Tensor x = randn({400, 500}), y = alpha_dropout(x, 0.3);
    CHECK(std::abs(doubles(mean(y))[0]) < 0.02);
    CHECK(std::abs(doubles(mean(square(y)))[0] - 1) < 0.03);
    // Two values where x is 0: a (-alpha) + b where it is dropped, b elsewhere.
    const double alpha = 1.7580993408473766, a = 1 / std::sqrt(0.7 * (1 + 0.3 * alpha * alpha)),
                 b = a * alpha * 0.3;
    const Tensor zero = alpha_dropout(zeros({1000}, {.dtype = float64}), 0.3);
    for (const double v : doubles(zero))
        CHECK((std::abs(v - b) < 1e-6 || std::abs(v - (b - a * alpha)) < 1e-6));
    const Tensor channels = feature_alpha_dropout(ones({8, 3, 16}), 0.5);
    CHECK(all_close(channels, channels.slice(1, 0, 1).expand({8, 3, 16}), 0, 0));
    CHECK(alpha_dropout(x, 0.3, false).impl() == x.impl());
    CHECK(doubles(max(abs(alpha_dropout(x, 1))))[0] == 0);
}

TEST_CASE("grid_sample: positions beyond every number") {
    const double nan = std::nan("");
    for (Device device : devices()) {
        const Tensor x = tensor_of({1, 2, 3, 4}, {1, 2, 2, 1}, float32, device);
        const Tensor grid = tensor_of({inf, 0, -1e30, 0, nan, nan, 0, -inf}, {1, 1, 4, 2}, float32, device);
        for (const InterpolateMode mode : {InterpolateMode::bilinear, nearest, bicubic}) {
            CAPTURE(int(mode));
            const std::vector<double> y =
                doubles(grid_sample(x, grid, {.mode = mode, .align_corners = true}));
            CHECK(y[0] == 0);
            CHECK(y[1] == 0);
            CHECK(y[2] == Approx(1));  // NaN counts as -1
            CHECK(y[3] == 0);
        }
        const std::vector<double> border =
            doubles(grid_sample(x, grid, {.padding_mode = PadMode::replicate, .align_corners = true}));
        CHECK(border == std::vector<double>{3, 2, 1, 1.5});
    }
}

TEST_CASE("volumes and samples of nothing") {
    for (const Shape& shape : {Shape{0, 3, 4, 3, 2}, Shape{1, 3, 4, 3, 0}}) {
        const Tensor x = zeros(shape).set_requires_grad();
        const auto runs = [&](const Tensor& y, const Shape& expected) {
            CHECK(y.shape() == expected);
            y.backward({.gradient = ones_like(y)});
            CHECK(x.grad().shape() == shape);
        };
        const std::int64_t n = shape[0], c = shape[4];
        runs(conv3d(x, zeros({5, 2, 2, 2, c})), {n, 2, 3, 2, 5});
        runs(conv_transpose3d(x, zeros({c, 2, 2, 2, 5})), {n, 4, 5, 4, 5});
        runs(max_pool3d(x, {.kernel_size = 2}), {n, 1, 2, 1, c});
        runs(max_pool3d_with_indices(x, {.kernel_size = 2}).values, {n, 1, 2, 1, c});
        runs(avg_pool3d(x, {.kernel_size = 2}), {n, 1, 2, 1, c});
        runs(interpolate(x, {2, 5, 4}, {.mode = trilinear}), {n, 2, 5, 4, c});
        runs(grid_sample(x, zeros({n, 2, 1, 1, 3})), {n, 2, 1, 1, c});
        runs(unfold(x.select(1, 0), {.kernel_size = 2}), {n, 6, 4 * c});
        runs(channel_shuffle(x, 2), shape);
        runs(instance_norm(x), shape);
    }
}

TEST_CASE("functions of volumes and samples refuse what does not fit") {
    const Tensor x = zeros({2, 5, 6, 3}), v = zeros({2, 3, 4, 5, 2});
    const auto value = ErrorKind::value, shape = ErrorKind::shape;
    check_error([&] { (void)max_pool3d(x, {.kernel_size = 2}); }, shape,
                {"max_pool3d", "not 5", "volumes are"});
    check_error(
        [&] {
            (void)max_pool3d(v, {.kernel_size = {4, 1, 1}});
        },
        shape, {"max_pool3d", "[4, 1, 1]", "[3, 4, 5]"});
    check_error(
        [&] {
            (void)avg_pool3d(v, {.kernel_size = {1, 0, 1}});
        },
        value, {"kernel_size is [1, 0, 1]"});
    check_error(
        [&] {
            (void)avg_pool3d(v, {.kernel_size = 3, .padding = {2, 0, 0}});
        },
        value, {"padding 2", "depth"});
    check_error([&] { (void)unfold(x, {.kernel_size = 7}); }, shape, {"unfold", "7 x 7", "5 x 6"});
    check_error([&] { (void)unfold(x, {.kernel_size = 2, .stride = 0}); }, value,
                {"unfold", "stride is 0 x 0"});
    check_error(
        [&] {
            (void)fold(zeros({2, 11, 8}), {4, 5}, {.kernel_size = 2});
        },
        shape, {"fold", "12 windows"});
    check_error(
        [&] {
            (void)fold(zeros({2, 12, 7}), {4, 5}, {.kernel_size = 2});
        },
        shape, {"fold", "[2, 12, 7]"});
    check_error([&] { (void)pixel_shuffle(x, 2); }, shape, {"pixel_shuffle", "3 channels", "2^2"});
    check_error([&] { (void)pixel_unshuffle(x, 2); }, shape, {"pixel_unshuffle", "[2, 5, 6, 3]"});
    check_error([&] { (void)pixel_shuffle(x, 0); }, value, {"upscale_factor 0"});
    check_error([&] { (void)channel_shuffle(x, 2); }, shape, {"channel_shuffle", "2 groups"});
    check_error([&] { (void)grid_sample(x, zeros({2, 3, 3, 3})); }, shape, {"grid_sample", "[2, 3, 3, 3]"});
    check_error([&] { (void)grid_sample(x, zeros({1, 3, 3, 2})); }, shape, {"grid_sample"});
    check_error([&] { (void)grid_sample(v, zeros({2, 3, 3, 3, 3}), {.mode = bicubic}); }, value, {"bicubic"});
    check_error(
        [&] {
            (void)grid_sample(x, zeros({2, 3, 3, 2}, {.dtype = float64}));
        },
        ErrorKind::dtype, {"float64"});
    check_error(
        [&] {
            (void)grid_sample(x, zeros({2, 3, 3, 2}), {.padding_mode = PadMode::circular});
        },
        value, {"padding_mode"});
    check_error([&] { (void)affine_grid(zeros({2, 2, 3}), {2, 3, 4, 5, 1}); }, shape, {"affine_grid"});
    check_error([&] { (void)interpolate(x, {2, 2}, {.mode = trilinear}); }, value, {"trilinear"});
    check_error([&] { (void)interpolate(x, {2, 2, 2}); }, value, {"interpolate", "[2, 2, 2]", "2 axes"});
    check_error([&] { (void)interpolate(x, {.mode = InterpolateMode::bilinear}); }, value,
                {"interpolate", "scale"});
    check_error([&] { (void)interpolate(x, {.scale_factor = -1}); }, value, {"scale_factor is -1"});
    check_error([&] { (void)interpolate(x, 4, {.scale_factor = 2}); }, value, {"both"});
    check_error([&] { (void)local_response_norm(x, 0); }, value, {"local_response_norm", "size 0"});
}
