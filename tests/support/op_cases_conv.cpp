// Op cases of convolutions.
#include <algorithm>

#include "mezzo/image_ops.h"
#include "ops/conv/conv.h"
#include "tests/support/conv_reference.h"

namespace mezzo::test {

namespace {

using kernels::ConvGeometry;
constexpr auto low = Under::low, keep = Under::keep;
constexpr auto any = Domain::any, positive = Domain::positive;

Size2d result_size(const Shape& x, const Shape& weight, const ConvGeometry& at) {
    const auto rows = [](std::int64_t size, std::int64_t kernel, std::int64_t stride, std::int64_t padding,
                         std::int64_t dilation) {
        return (size + 2 * padding - dilation * (kernel - 1) - 1) / stride + 1;
    };
    return {rows(x[1], weight[1], at.stride.height, at.padding.height, at.dilation.height),
            rows(x[2], weight[2], at.stride.width, at.padding.width, at.dilation.width)};
}

std::vector<double> with_bias(std::vector<double> y, const Array& bias) {
    for (std::size_t i = 0; i < y.size(); ++i) y[i] += bias.values[i % bias.values.size()];
    return y;
}

// Reference for inputs x, weight and, if there is a third, bias.
Reference convolution(const ConvGeometry& at = {}) {
    return [at](std::span<const Array> x) {
        const std::vector<double> y = naive_conv2d(x[0], x[1], at, result_size(x[0].shape, x[1].shape, at));
        return x.size() > 2 ? with_bias(y, x[2]) : y;
    };
}

// Reference for inputs x, weight, bias and residual.
Reference convolution_add_relu(const ConvGeometry& at) {
    return [at](std::span<const Array> x) {
        std::vector<double> y = convolution(at)(x.first(3));
        for (std::size_t i = 0; i < y.size(); ++i) y[i] = std::max(0.0, y[i] + x[3].values[i]);
        return y;
    };
}

Tensor unrecorded_add_relu(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& residual,
                           const Conv2dOptions& options) {
    const NoGrad plain;
    return conv2d_add_relu(x, weight, bias, residual, options);
}

// Reference for [N, L, C] as images of height 1.
Reference convolution_1d(const ConvGeometry& at) {
    return [at](std::span<const Array> x) {
        std::vector<Array> two_d(x.begin(), x.end());
        for (std::size_t i = 0; i < 2; ++i) two_d[i].shape.insert(1, 1);
        return convolution(at)(two_d);
    };
}

Reference transposed_convolution(const ConvGeometry& at, Size2d output_padding = 0) {
    return [=](std::span<const Array> x) {
        const auto rows = [](std::int64_t size, std::int64_t kernel, std::int64_t stride,
                             std::int64_t padding, std::int64_t dilation, std::int64_t more) {
            return (size - 1) * stride - 2 * padding + dilation * (kernel - 1) + more + 1;
        };
        const Shape &image = x[0].shape, &weight = x[1].shape;
        const Size2d size(rows(image[1], weight[1], at.stride.height, at.padding.height, at.dilation.height,
                               output_padding.height),
                          rows(image[2], weight[2], at.stride.width, at.padding.width, at.dilation.width,
                               output_padding.width));
        const std::vector<double> y = naive_input_grad(x[0], x[1], at, size);
        return x.size() > 2 ? with_bias(y, x[2]) : y;
    };
}

// The ops of the gradients by themselves.
constexpr ConvGeometry strided{.stride = {2, 1}, .padding = {1, 0}}, grouped{.padding = 1, .groups = 3};
// These ops rely on checks of conv2d().
void require_groups(const Tensor& a, const Tensor& b, int dim_of_b) {
    for (const std::int64_t channels : {a.size(3), b.size(dim_of_b)})
        check(channels % grouped.groups == 0, ErrorKind::shape, "groups do not divide ", channels,
              " channels");
}
void require_taps(const Tensor& weight) {
    check(weight.size(1) > 0 && weight.size(2) > 0, ErrorKind::shape, "a weight without taps");
}
Tensor strided_input_grad(In x) {
    require_taps(x[1]);
    return conv2d_input_grad(x[0], x[1], strided, {6, 5});
}
Tensor grouped_input_grad(In x) {
    require_groups(x[0], x[1], 0);
    require_taps(x[1]);
    return conv2d_input_grad(x[0], x[1], grouped, {3, 4});
}
Tensor strided_weight_grad(In x) { return conv2d_weight_grad(x[0], x[1], strided, 3, x[0].dtype()); }
Tensor grouped_weight_grad(In x) {
    require_groups(x[0], x[1], 3);
    return conv2d_weight_grad(x[0], x[1], grouped, 3, x[0].dtype());
}

Reference input_gradient(const ConvGeometry& at, Size2d size) {
    return [=](std::span<const Array> x) { return naive_input_grad(x[0], x[1], at, size); };
}
Reference weight_gradient(const ConvGeometry& at, Size2d kernel_size) {
    return [=](std::span<const Array> x) { return naive_weight_grad(x[0], x[1], at, kernel_size); };
}

Tensor conv(In x, const Conv2dOptions& options) {
    return conv2d(x[0], x[1], x.size() > 2 ? x[2] : Tensor(), options);
}
Tensor transposed(In x, const ConvTranspose2dOptions& options) {
    return conv_transpose2d(x[0], x[1], x.size() > 2 ? x[2] : Tensor(), options);
}

// clang-format off
std::vector<OpCase> plain_cases() {
    return {
        {"conv2d", [](In x) { return conv(x, {.padding = 1}); }, {{2, 5, 4, 3}, {4, 3, 3, 3}, {4}}, convolution({.padding = 1}), low, any,
         "", "conv2d"},
        {"conv2d 1x1", [](In x) { return conv(x, {}); }, {{2, 3, 4, 5}, {7, 1, 1, 5}}, convolution(), low},
        {"conv2d 1x1 with stride", [](In x) { return conv(x, {.stride = 2}); }, {{2, 5, 4, 3}, {4, 1, 1, 3}},
         convolution({.stride = 2}), low},
        {"conv2d 5x3 of one channel", [](In x) { return conv(x, {.padding = {2, 1}}); }, {{2, 6, 5, 1}, {1, 5, 3, 1}},
         convolution({.padding = {2, 1}}), low},
        {"conv2d with stride", [](In x) { return conv(x, {.stride = 2, .padding = 1}); }, {{2, 5, 6, 3}, {5, 3, 3, 3}},
         convolution({.stride = 2, .padding = 1}), low},
        {"conv2d with a stride beyond the kernel", [](In x) { return conv(x, {.stride = {3, 4}}); }, {{2, 8, 9, 3}, {4, 1, 3, 3}, {4}},
         convolution({.stride = {3, 4}}), low},
        {"conv2d with padding beyond the kernel", [](In x) { return conv(x, {.padding = {3, 2}}); }, {{2, 3, 4, 3}, {4, 3, 1, 3}},
         convolution({.padding = {3, 2}}), low},
        {"conv2d with dilation", [](In x) { return conv(x, {.padding = 2, .dilation = {2, 3}}); }, {{2, 6, 5, 3}, {4, 3, 3, 3}},
         convolution({.padding = 2, .dilation = {2, 3}}), low},
        {"conv2d with groups", [](In x) { return conv(x, {.padding = 1, .groups = 3}); }, {{2, 4, 5, 9}, {6, 3, 3, 3}, {6}},
         convolution({.padding = 1, .groups = 3}), low, any, "", "", true, false},
        {"conv2d of each channel", [](In x) { return conv(x, {.stride = {2, 1}, .padding = 1, .groups = 5}); },
         {{2, 4, 3, 5}, {5, 3, 3, 1}}, convolution({.stride = {2, 1}, .padding = 1, .groups = 5}), low, any, "", "", true, false},
        {"conv2d of each channel to three", [](In x) { return conv(x, {.groups = 4}); }, {{2, 3, 4, 4}, {12, 3, 3, 1}},
         convolution({.groups = 4}), low, any, "", "", true, false},
        // Without a gradient it is one op, with one it is three, whose 16-bit results move ReLU's kink.
        {"conv2d_add_relu", [](In x) { return unrecorded_add_relu(x[0], x[1], x[2], x[3], {.padding = 1}); },
         {{2, 5, 4, 3}, {4, 3, 3, 3}, {4}, {2, 5, 4, 4}}, convolution_add_relu({.padding = 1}), low, any, "", "", false, false, false},
        {"conv2d_add_relu of each channel", [](In x) { return unrecorded_add_relu(x[0], x[1], x[2], {}, {.groups = 3}); },
         {{2, 4, 4, 3}, {3, 3, 3, 1}, {3}}, nullptr, low, any, "", "", false, false},
        {"conv2d_add_relu of positive numbers", [](In x) { return conv2d_add_relu(x[0], x[1], x[2], {}); },
         {{2, 5, 4, 3}, {4, 3, 3, 3}, {4}}, convolution(), low, positive},
        {"conv2d with a kernel of the image's size", [](In x) { return conv(x, {}); }, {{2, 4, 3, 8}, {7, 4, 3, 8}, {7}},
         convolution(), low},
        {"conv1d", [](In x) { return conv1d(x[0], x[1], x[2], {.stride = 2, .padding = 1}); }, {{2, 7, 3}, {4, 3, 3}, {4}},
         convolution_1d({.stride = {1, 2}, .padding = {0, 1}}), low},
        {"conv1d with dilation and groups", [](In x) { return conv1d(x[0], x[1], {}, {.dilation = 3, .groups = 4}); }, {{2, 9, 4}, {4, 3, 1}},
         convolution_1d({.dilation = {1, 3}, .groups = 4}), low, any, "", "", true, false},
    };
}

std::vector<OpCase> volume_cases() {
    return {
        {"conv3d", [](In x) { return conv3d(x[0], x[1], x[2], {.padding = 1}); }, {{2, 3, 4, 3, 2}, {4, 3, 3, 3, 2}, {4}}, nullptr, low},
        {"conv3d with stride, dilation and groups",
         [](In x) {
             return conv3d(x[0], x[1], {},
                           {.stride = {2, 1, 2}, .padding = {1, 0, 1}, .dilation = {2, 1, 1}, .groups = 2});
         },
         {{2, 4, 3, 4, 6}, {4, 2, 2, 3, 3}}, nullptr, low, any, "", "", true, false},
        {"conv3d of one slice", [](In x) { return conv3d(x[0], x[1], x[2]); }, {{2, 3, 2, 4, 3}, {4, 1, 2, 2, 3}, {4}}, nullptr, low, any, "",
         "", true, false},
        {"conv3d with same_padding", [](In x) { return conv3d(x[0], x[1], x[2], {.padding = same_padding}); },
         {{2, 3, 4, 2, 3}, {2, 2, 3, 4, 3}, {2}}, nullptr, low, any, "", "", true, false},
        {"conv2d with same_padding", [](In x) { return conv(x, {.padding = same_padding}); }, {{2, 5, 4, 3}, {4, 2, 3, 3}, {4}}, nullptr, low,
         any, "", "", true, false},
        {"conv1d with same_padding", [](In x) { return conv1d(x[0], x[1], x[2], {.padding = same_padding, .dilation = 2}); },
         {{2, 5, 3}, {4, 4, 3}, {4}}, nullptr, low, any, "", "", true, false},
        {"conv_transpose1d", [](In x) { return conv_transpose1d(x[0], x[1], x[2], {.stride = 2, .padding = 1, .output_padding = 1}); },
         {{2, 4, 3}, {3, 3, 4}, {4}}, nullptr, low, any, "", "", true, false},
        {"conv_transpose3d", [](In x) { return conv_transpose3d(x[0], x[1], x[2], {.stride = 2, .padding = {1, 0, 1}, .output_padding = 1}); },
         {{2, 3, 2, 3, 3}, {3, 3, 2, 3, 4}, {4}}, nullptr, low, any, "", "", true, false, true, 2},
        {"conv_transpose3d with groups", [](In x) { return conv_transpose3d(x[0], x[1], {}, {.dilation = {2, 1, 1}, .groups = 2}); },
         {{2, 3, 2, 2, 4}, {4, 2, 2, 1, 1}}, nullptr, low, any, "", "", true, false, true, 2},
    };
}

std::vector<OpCase> gradient_cases() {
    return {
        {"conv2d_input_grad", strided_input_grad, {{2, 3, 3, 4}, {4, 3, 3, 5}}, input_gradient(strided, {6, 5}), keep},
        {"conv2d_input_grad with groups", grouped_input_grad, {{2, 3, 4, 3}, {3, 3, 3, 4}}, input_gradient(grouped, {3, 4}), keep, any,
         "", "", true, false},
        {"conv2d_weight_grad", strided_weight_grad, {{2, 3, 3, 4}, {2, 6, 5, 3}}, weight_gradient(strided, 3), keep, any, "", "", true,
         false},
        {"conv2d_weight_grad with groups", grouped_weight_grad, {{2, 3, 4, 3}, {2, 3, 4, 6}}, weight_gradient(grouped, 3), keep, any,
         "", "", true, false},
        {"conv_transpose2d", [](In x) { return transposed(x, {.stride = 2, .output_padding = {1, 0}}); },
         {{2, 3, 4, 3}, {3, 3, 3, 4}, {4}}, transposed_convolution({.stride = 2}, {1, 0}), low},
        {"conv_transpose2d with groups", [](In x) { return transposed(x, {.stride = {1, 3}, .groups = 3}); }, {{2, 3, 4, 6}, {6, 3, 1, 1}},
         transposed_convolution({.stride = {1, 3}, .groups = 3}), low, any, "", "", true, false},
        {"conv_transpose2d 1x1 with output_padding", [](In x) { return transposed(x, {.output_padding = 1, .dilation = 2}); },
         {{2, 2, 3, 8}, {8, 1, 1, 8}}, transposed_convolution({.dilation = 2}, 1), low},
        {"conv_transpose2d with output_padding beyond its stride",
         [](In x) { return transposed(x, {.padding = 1, .output_padding = {1, 2}, .dilation = 3}); },
         {{2, 4, 3, 3}, {3, 3, 3, 5}},
         transposed_convolution({.padding = 1, .dilation = 3}, {1, 2}), low, any, "", "", true, false},
    };
}
// clang-format on

}  // namespace

std::vector<OpCase> conv_cases() {
    std::vector<OpCase> cases = plain_cases();
    for (OpCase& c : gradient_cases()) cases.push_back(c);
    for (OpCase& c : volume_cases()) cases.push_back(c);
    return cases;
}

}  // namespace mezzo::test
