// The decompositions of the convolution ops, kernel position by kernel position.
#include <algorithm>

#include "ops/conv/conv.h"

namespace mezzo {

namespace {

using kernels::ConvGeometry;

// x with `before` and `after` zeros added to dimension dim; negative numbers crop.
Tensor zero_padded(const Tensor& x, int dim, std::int64_t before, std::int64_t after) {
    const std::int64_t size = x.size(dim), total = before + size + after;
    const Tensor kept = x.slice(dim, std::max<std::int64_t>(0, -before),
                                std::max<std::int64_t>(0, std::min(size, size + after)));
    const std::int64_t lead = std::clamp<std::int64_t>(before, 0, total),
                       tail = total - lead - kept.size(dim);
    if (lead == 0 && tail == 0) return kept;
    const auto zeros_of = [&](std::int64_t count) {
        Shape shape = x.shape();
        shape[dim] = count;
        return zeros(shape, {.dtype = x.dtype(), .device = x.device()});
    };
    return cat({zeros_of(lead), kept, zeros_of(tail)}, dim);
}

Tensor padded_image(const Tensor& x, Size2d padding) {
    return zero_padded(zero_padded(x, 1, padding.height, padding.height), 2, padding.width, padding.width);
}

// x with step - 1 zeros between the elements of dimension dim.
Tensor spread(const Tensor& x, int dim, std::int64_t step) {
    if (step == 1 || x.size(dim) <= 1) return x;
    Shape shape = x.shape();
    shape[dim] *= step;
    const Tensor with_zeros = zero_padded(x.unsqueeze(dim + 1), dim + 1, 0, step - 1).reshape(shape);
    return with_zeros.slice(dim, 0, shape[dim] - step + 1);
}

// The `count` elements of dimension dim that begin at `start` and lie `step` apart.
Tensor every(const Tensor& x, int dim, std::int64_t start, std::int64_t count, std::int64_t step) {
    return x.slice(dim, start, count ? start + (count - 1) * step + 1 : start, step);
}

// [N, H, W, groups * n] -> [groups, N * H * W, n].
Tensor by_group(const Tensor& x, std::int64_t groups) {
    const std::int64_t rows = x.size(0) * x.size(1) * x.size(2);
    return x.reshape({rows, groups, x.size(3) / groups}).permute({1, 0, 2});
}

// [groups, N * H * W, n] -> [N, H, W, groups * n].
Tensor from_groups(const Tensor& x, const Tensor& image, Size2d size) {
    return x.permute({1, 0, 2}).reshape({image.size(0), size.height, size.width, x.size(0) * x.size(2)});
}

// Pixels of a padded image that kernel position (r, s) reads.
Tensor tap_of(const Tensor& padded, std::int64_t r, std::int64_t s, Size2d size, const ConvGeometry& at) {
    const Tensor rows = every(padded, 1, r * at.dilation.height, size.height, at.stride.height);
    return by_group(every(rows, 2, s * at.dilation.width, size.width, at.stride.width), at.groups);
}

// Kernel position (r, s) of a weight [O, kernel height, kernel width, n] as [groups, O / groups, n].
Tensor tap_weight(const Tensor& weight, std::int64_t r, std::int64_t s, std::int64_t groups) {
    return weight.select(1, r).select(1, s).reshape({groups, weight.size(0) / groups, weight.size(3)});
}

Size2d image_size(const Tensor& x) { return {x.size(1), x.size(2)}; }

}  // namespace

std::int64_t conv_size(std::int64_t size, std::int64_t kernel, std::int64_t stride, std::int64_t padding,
                       std::int64_t dilation) {
    std::int64_t padded = 0, covered = 0;
    if (__builtin_mul_overflow(padding, 2, &padded) || __builtin_add_overflow(padded, size, &padded) ||
        __builtin_mul_overflow(dilation, kernel - 1, &covered))
        return -1;
    return padded > covered ? (padded - covered - 1) / stride + 1 : 0;
}

Tensors conv2d_decomposition(In in, const kernels::Conv2d& conv) {
    const ConvGeometry& at = conv.geometry;
    const Tensor &x = in[0], &weight = in[1];
    const Size2d size(
        conv_size(x.size(1), weight.size(1), at.stride.height, at.padding.height, at.dilation.height),
        conv_size(x.size(2), weight.size(2), at.stride.width, at.padding.width, at.dilation.width));
    const Tensor padded = padded_image(x, at.padding);
    Tensor sum;
    for (std::int64_t r = 0; r < weight.size(1); ++r)
        for (std::int64_t s = 0; s < weight.size(2); ++s) {
            const Tensor term =
                matmul(tap_of(padded, r, s, size, at), tap_weight(weight, r, s, at.groups).transpose(1, 2));
            sum = sum.defined() ? sum + term : term;
        }
    const Tensor y = from_groups(sum, x, size);
    return {in.size() > 2 && in[2].defined() ? y + in[2] : y};
}

Tensors conv2d_add_relu_decomposition(In in, const kernels::Conv2dAddRelu& at) {
    const Tensor y = conv2d_decomposition(in.first(3), {.geometry = at.geometry})[0];
    return {relu(in[3].defined() ? y + in[3] : y)};
}

// A convolution of stride 1, with the kernel mirrored, of g with stride - 1 zeros between its elements.
Tensors conv2d_input_grad_decomposition(In in, const kernels::Conv2dInputGrad& conv) {
    const ConvGeometry& at = conv.geometry;
    const Tensor &g = in[0], &weight = in[1];
    const std::int64_t height = weight.size(1), width = weight.size(2);
    const auto placed = [](const Tensor& x, int dim, std::int64_t stride, std::int64_t covered,
                           std::int64_t padding, std::int64_t size) {
        const Tensor apart = spread(x, dim, stride);
        return zero_padded(apart, dim, covered - padding, size + padding - apart.size(dim));
    };
    Tensor padded = placed(g, 1, at.stride.height, (height - 1) * at.dilation.height, at.padding.height,
                           conv.size.height);
    padded = placed(padded, 2, at.stride.width, (width - 1) * at.dilation.width, at.padding.width,
                    conv.size.width);
    const ConvGeometry dense{.dilation = at.dilation, .groups = at.groups};
    Tensor sum;
    for (std::int64_t r = 0; r < height; ++r)
        for (std::int64_t s = 0; s < width; ++s) {
            const Tensor pixels = tap_of(padded, height - 1 - r, width - 1 - s, conv.size, dense);
            const Tensor term = matmul(pixels, tap_weight(weight, r, s, at.groups));
            sum = sum.defined() ? sum + term : term;
        }
    const Tensor dx = from_groups(sum, g, conv.size);
    return {in.size() > 2 && in[2].defined() ? dx + in[2] : dx};
}

Tensors conv2d_weight_grad_decomposition(In in, const kernels::Conv2dWeightGrad& conv) {
    const ConvGeometry& at = conv.geometry;
    const Tensor &g = in[0], &x = in[1];
    const Tensor across = by_group(g, at.groups).transpose(1, 2);
    // g may have fewer rows than the image allows windows, never more.
    const Tensor padded = padded_image(x, at.padding);
    Tensors rows;
    for (std::int64_t r = 0; r < conv.kernel_size.height; ++r) {
        Tensors taps;
        for (std::int64_t s = 0; s < conv.kernel_size.width; ++s)
            taps.push_back(matmul(across, tap_of(padded, r, s, image_size(g), at))
                               .reshape({g.size(3), 1, 1, x.size(3) / at.groups}));
        rows.push_back(cat(taps, 2));
    }
    return {cat(rows, 1)};
}

void check_residual(const Tensor& r, const Tensor& x, const Shape& result) {
    if (!r.defined()) return;
    const Dtype dtype = autocast_dtype(CastPolicy::low, r), wanted = autocast_dtype(CastPolicy::low, x);
    check(dtype == wanted, ErrorKind::dtype, "conv2d_add_relu: input is ", wanted, ", the residual ", dtype,
          "; convert one with to()");
    check(r.shape() == result, ErrorKind::shape, "conv2d_add_relu: residual ", r.shape(), " is not ", result,
          " as the result");
}

}  // namespace mezzo
