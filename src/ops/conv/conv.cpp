// Convolutions of signals and images, from three ops: the convolution and its two gradients. The gradients of
// each of the three are the other two. Convolutions of volumes are convolutions of their slices.
#include "ops/conv/conv.h"

#include <algorithm>
#include <limits>

#include "autograd/op_observer.h"
#include "mezzo/image_ops.h"
#include "ops/gemm/products.h"
#include "ops/index/index.h"
#include "ops/pool/image.h"

namespace mezzo {

namespace {

using detail::AxisNumbers;
using kernels::ConvGeometry;

const KernelOf<kernels::Conv2dWeightGrad> weight_grad_kernel;

Tensors conv2d_vjp(const Node& c, const kernels::Conv2d& at, const Tensors& g);
Tensors input_grad_vjp(const Node& c, const kernels::Conv2dInputGrad& at, const Tensors& g);
Tensors weight_grad_vjp(const Node& c, const kernels::Conv2dWeightGrad& at, const Tensors& g);

const Op<kernels::Conv2d> conv2d_op{
    {.cast = CastPolicy::low, .saves = save_first | save_second}, conv2d_vjp, conv2d_decomposition};
const Op<kernels::Conv2dAddRelu> conv2d_add_relu_op{
    {.cast = CastPolicy::low}, nullptr, conv2d_add_relu_decomposition};
const Op<kernels::Conv2dInputGrad> input_grad_op{{}, input_grad_vjp, conv2d_input_grad_decomposition};
const Op<kernels::Conv2dInputGrad> conv_transpose2d_op{{.name = "conv_transpose2d",
                                                        .cast = CastPolicy::low,
                                                        .cast_inputs = 2,
                                                        .saves = save_first | save_second,
                                                        .mixed = true},
                                                       input_grad_vjp,
                                                       conv2d_input_grad_decomposition};
const Op<kernels::Conv2dWeightGrad> weight_grad_op{{}, weight_grad_vjp, conv2d_weight_grad_decomposition};

Size2d image_size(const Shape& shape) { return {shape[1], shape[2]}; }

// The two operands in their common dtype: in a second derivative one may be a float32 gradient of a weight.
struct CommonDtype {
    Tensor a, b;
    CommonDtype(const Tensor& x, const Tensor& y) : a(x), b(y) {
        const Dtype dtype = promote(x.dtype(), y.dtype());
        a = cast(x, dtype);
        b = cast(y, dtype);
    }
};

// The first rows and columns of a convolution, as many as `size` says.
Tensor convolved(const Tensor& x, const Tensor& weight, const ConvGeometry& at, Size2d size) {
    const CommonDtype in(x, weight);
    const Shape whole{
        x.size(0),
        conv_size(x.size(1), weight.size(1), at.stride.height, at.padding.height, at.dilation.height),
        conv_size(x.size(2), weight.size(2), at.stride.width, at.padding.width, at.dilation.width),
        weight.size(0)};
    return call(conv2d_op, {in.a, in.b}, {.geometry = at}, whole)
        .slice(1, 0, size.height)
        .slice(2, 0, size.width);
}

// The gradient of the weight, input 1, from the gradient g of a convolution of x. If the engine allows it
// (Node::accumulator), the kernel adds it to grad(), and the result is undefined.
Tensor weight_grad_of(const Node& c, const Tensor& g, const Tensor& x, const ConvGeometry& at) {
    const Size2d kernel_size = image_size(c.inputs[1].shape);
    const bool fits =
        g.dtype() == x.dtype() && g.dtype() != float64 && weight_grad_op.kernel(g.device().type()) != nullptr;
    const Tensor grad = fits ? c.accumulator(1) : Tensor();
    if (!grad.defined()) return conv2d_weight_grad(g, x, at, kernel_size, c.grad_dtype(1));
    const Tensor operands[] = {g.contiguous(), x.contiguous()};
    weight_grad_kernel(operands, {.geometry = at, .kernel_size = kernel_size, .beta = 1}, grad);
    grad->storage->version.fetch_add(1, std::memory_order_relaxed);
    return {};
}

Tensor bias_grad(const Tensor& g, Dtype wanted) {
    const Dtype given = g.dtype();
    const std::int64_t rows = g.size(0) * g.size(1) * g.size(2);
    return column_sum(g.reshape({rows, g.size(3)}), is_16bit(given) && wanted != given ? float32 : given);
}

Tensors conv2d_vjp(const Node& c, const kernels::Conv2d& at, const Tensors& gs) {
    const Tensor g = gs[0].contiguous();
    Tensors grads(c.inputs.size());
    if (c.needs(0)) grads[0] = conv2d_input_grad(g, c.in(1), at.geometry, image_size(c.inputs[0].shape));
    if (c.needs(1)) grads[1] = weight_grad_of(c, g, c.in(0), at.geometry);
    if (c.inputs.size() > 2 && c.needs(2)) grads[2] = bias_grad(g, c.grad_dtype(2));
    return grads;
}

// Inputs g, weight, perhaps a bias -> dx. u: the gradient of dx.
Tensors input_grad_vjp(const Node& c, const kernels::Conv2dInputGrad& at, const Tensors& gs) {
    const Tensor u = gs[0].contiguous();
    Tensors grads(c.inputs.size());
    if (c.needs(0)) grads[0] = convolved(u, c.in(1), at.geometry, image_size(c.inputs[0].shape));
    if (c.needs(1)) grads[1] = weight_grad_of(c, c.in(0), u, at.geometry);
    if (c.inputs.size() > 2 && c.needs(2)) grads[2] = bias_grad(u, c.grad_dtype(2));
    return grads;
}

// Inputs g, x -> dw. v: the gradient of dw, which is a weight.
Tensors weight_grad_vjp(const Node& c, const kernels::Conv2dWeightGrad& at, const Tensors& gs) {
    Tensors grads(2);
    if (c.needs(0)) grads[0] = convolved(c.in(1), gs[0], at.geometry, image_size(c.inputs[0].shape));
    if (c.needs(1)) grads[1] = conv2d_input_grad(c.in(0), gs[0], at.geometry, image_size(c.inputs[1].shape));
    return grads;
}

}  // namespace

Tensor conv2d_input_grad(const Tensor& g, const Tensor& weight, const ConvGeometry& at, Size2d size) {
    const CommonDtype in(g, weight);
    return call(input_grad_op, {in.a, in.b}, {.geometry = at, .size = size},
                {g.size(0), size.height, size.width, weight.size(3) * at.groups});
}

Tensor conv2d_weight_grad(const Tensor& g, const Tensor& x, const ConvGeometry& at, Size2d kernel_size,
                          Dtype wanted) {
    const CommonDtype in(g, x);
    const bool to_float = is_16bit(in.a.dtype()) && !(wanted == in.a.dtype());
    return call(weight_grad_op, {in.a, in.b}, {.geometry = at, .kernel_size = kernel_size},
                {g.size(3), kernel_size.height, kernel_size.width, x.size(3) / at.groups},
                to_float ? std::optional(float32) : std::nullopt);
}

namespace {

// Options of one axis, for the checks.
struct Axis {
    const char* name;
    std::int64_t stride = 1, padding = 0, dilation = 1, output_padding = 0;
};

// A convolution's options along depth, height and width. Axes before `first` are those that images and
// signals do not have.
struct Axes {
    const char* op;
    int first;
    std::int64_t groups;
    Axis axis[3] = {{"depth"}, {"height"}, {"width"}};

    Axes(const char* name, const AxisNumbers& stride, const AxisNumbers& padding, const AxisNumbers& dilation,
         std::int64_t group_count, const AxisNumbers* output_padding = nullptr)
        : op(name), first(3 - stride.count), groups(group_count) {
        for (int a = first; a < 3; ++a)
            axis[a] = {axis[a].name, stride.values[a - first], padding.values[a - first],
                       dilation.values[a - first],
                       output_padding == nullptr ? 0 : output_padding->values[a - first]};
        if (first == 2) axis[2].name = "length";
    }
    int rank() const { return 5 - first; }
    // The dimension of axis a in the input and in the weight.
    int dim(int a) const { return a - first + 1; }
    // The part along height and width.
    ConvGeometry image() const {
        return {{axis[1].stride, axis[2].stride},
                {axis[1].padding, axis[2].padding},
                {axis[1].dilation, axis[2].dilation},
                groups};
    }
};

// Names of the layouts in errors.
struct Words {
    const char *things, *input, *weight, *transposed_weight, *permute;
};
constexpr Words words[] = {
    {"volumes", "[batch, depth, height, width, channels]",
     "[out, kernel depth, kernel height, kernel width, in / groups]",
     "[in, kernel depth, kernel height, kernel width, out / groups]", "permute({0, 2, 3, 4, 1})"},
    {"images", "[batch, height, width, channels]", "[out, kernel height, kernel width, in / groups]",
     "[in, kernel height, kernel width, out / groups]", "permute({0, 2, 3, 1})"},
    {"signals", "[batch, length, channels]", "[out, kernel size, in / groups]",
     "[in, kernel size, out / groups]", "permute({0, 2, 1})"}};

void check_ranks(const Axes& axes, const Tensor& x, const Tensor& weight, const char* weight_layout) {
    const int rank = axes.rank();
    check(x.dim() == rank, ErrorKind::shape, axes.op, ": input ", x.shape(), " is not ",
          words[axes.first].input, missing_dimension_hint(x.dim(), rank));
    check(weight.dim() == rank, ErrorKind::shape, axes.op, ": weight ", weight.shape(), " is not ",
          weight_layout);
    for (int d = 1; d + 1 < rank; ++d)
        check(weight.size(d) > 0, ErrorKind::shape, axes.op, ": weight ", weight.shape(),
              " has no taps; weights are ", weight_layout);
}

// Kernels may compute with 32 bits in such numbers.
constexpr std::int64_t largest = std::numeric_limits<std::int32_t>::max();

void check_number(const char* op, const char* what, std::int64_t value, std::int64_t least) {
    check(value >= least && value <= largest, ErrorKind::value, op, ": ", what, " ", value, " is not in [",
          least, ", ", largest, "]");
}

void check_numbers(const Axes& axes) {
    for (const Axis& axis : axes.axis) {
        check_number(axes.op, "stride", axis.stride, 1);
        check_number(axes.op, "padding", axis.padding, 0);
        check_number(axes.op, "dilation", axis.dilation, 1);
    }
    check_number(axes.op, "groups", axes.groups, 1);
}

// Checks that the channels that the weight reads are those of the input. The usual cause of a wrong number is
// an input or a weight in PyTorch's order.
void check_channels(const Axes& axes, const Tensor& x, std::int64_t reads, const Tensor& weight) {
    if (x.size(-1) == reads) return;
    const Words& w = words[axes.first];
    check(x.size(1) != reads, ErrorKind::shape, axes.op, ": input ", x.shape(), " has ", x.size(-1),
          " channels in its last dimension, but weight ", weight.shape(), " reads ", reads, "; ", w.things,
          " are ", w.input, ": x.", w.permute);
    fail(ErrorKind::shape, axes.op, ": input ", x.shape(), " has ", x.size(-1), " channels, but weight ",
         weight.shape(), " reads ", reads, "; ", w.things, " are ", w.input,
         ", and PyTorch's input and weight become mezzo's by ", w.permute);
}

void check_bias(const char* op, const Tensor& bias, const Tensor& weight, std::int64_t channels) {
    if (!bias.defined()) return;
    check_factors(op, bias, weight);
    check(bias.dim() == 1 && bias.size(0) == channels, ErrorKind::shape, op, ": bias ", bias.shape(),
          " does not fit a result with ", channels, " channels");
}

// Checks what does not depend on sizes and returns the number of channels of the result.
std::int64_t checked_channels(const Axes& axes, const Tensor& x, const Tensor& weight, const Tensor& bias,
                              bool transposed) {
    const Words& w = words[axes.first];
    check_factors(axes.op, x, weight);
    check_ranks(axes, x, weight, transposed ? w.transposed_weight : w.weight);
    check_numbers(axes);
    std::int64_t others = 0;
    check(!__builtin_mul_overflow(weight.size(-1), axes.groups, &others), ErrorKind::shape, axes.op, ": ",
          axes.groups, " groups of ", weight.size(-1), " channels are beyond 2^63");
    if (transposed) check_channels(axes, x, weight.size(0), weight);
    check(weight.size(0) % axes.groups == 0, ErrorKind::shape, axes.op, ": ", axes.groups,
          " groups do not divide the ", weight.size(0), " channels of the ", transposed ? "input" : "result");
    if (!transposed) check_channels(axes, x, others, weight);
    const std::int64_t channels = transposed ? others : weight.size(0);
    check_bias(axes.op, bias, weight, channels);
    return channels;
}

// The size of the result along axis a, checked.
std::int64_t checked_size(const Axes& axes, const Tensor& x, const Tensor& weight, int a) {
    if (a < axes.first) return 1;
    const Axis& axis = axes.axis[a];
    const std::int64_t in = x.size(axes.dim(a)), kernel = weight.size(axes.dim(a));
    const std::int64_t size = conv_size(in, kernel, axis.stride, axis.padding, axis.dilation);
    check(size >= 0, ErrorKind::shape, axes.op, ": padding ", axis.padding, " or dilation ", axis.dilation,
          " makes sizes beyond 2^63");
    check(size > 0, ErrorKind::shape, axes.op, ": a kernel of ", kernel, " with dilation ", axis.dilation,
          " does not fit into ", axis.name, " ", in, " with padding ", axis.padding);
    return size;
}

// (size - 1) stride - 2 padding + dilation (kernel - 1) + output_padding + 1.
std::int64_t transposed_size(const Axes& axes, const Tensor& x, const Tensor& weight, int a) {
    if (a < axes.first) return 1;
    const Axis& axis = axes.axis[a];
    const std::int64_t in = x.size(axes.dim(a)), kernel = weight.size(axes.dim(a));
    check(axis.output_padding >= 0 && axis.output_padding < std::max(axis.stride, axis.dilation),
          ErrorKind::value, axes.op, ": output_padding ", axis.output_padding, " is not in [0, ",
          std::max(axis.stride, axis.dilation), "), the larger of stride and dilation");
    std::int64_t size = 0, covered = 0, cropped = 0;
    const bool beyond = __builtin_mul_overflow(in - 1, axis.stride, &size) ||
                        __builtin_mul_overflow(kernel - 1, axis.dilation, &covered) ||
                        __builtin_mul_overflow(axis.padding, 2, &cropped) ||
                        __builtin_add_overflow(size, covered, &size) ||
                        __builtin_add_overflow(size, axis.output_padding + 1, &size) ||
                        __builtin_sub_overflow(size, cropped, &size);
    check(!beyond, ErrorKind::shape, axes.op, ": the ", axis.name, " of the result is beyond 2^63");
    check(size > 0, ErrorKind::shape, axes.op, ": ", axis.name, " ", in, " with a kernel of ", kernel,
          " and padding ", axis.padding, " gives a result of ", axis.name, " ", size);
    return size;
}

// Replaces same_padding by the number of zeros on each side. If the total is odd, x gets one more at its end.
Tensor with_same_padding(const Tensor& x, const Tensor& weight, Axes& axes) {
    Tensor y = x;
    for (int a = axes.first; a < 3; ++a) {
        Axis& axis = axes.axis[a];
        if (axis.padding != same_padding) continue;
        check(axis.stride == 1, ErrorKind::value, axes.op, ": same_padding with stride ", axis.stride,
              "; it needs stride 1");
        check_number(axes.op, "dilation", axis.dilation, 1);
        axis.padding = 0;
        if (!weight.defined() || weight.dim() != axes.rank() || !x.defined() || x.dim() != axes.rank())
            continue;
        const int d = axes.dim(a);
        const std::int64_t total = axis.dilation * std::max<std::int64_t>(weight.size(d) - 1, 0);
        axis.padding = total / 2;
        if (total % 2 != 0) y = pad(y, {{d, 0, 1}});
    }
    return y;
}

Tensor run_conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias, const ConvGeometry& at,
                  Size2d size) {
    const Tensor given[] = {x, weight, bias};
    return call(conv2d_op, In(given, bias.defined() ? 3 : 2), {.geometry = at},
                {x.size(0), size.height, size.width, weight.size(0)});
}

// A bias that autocast left in float32 is added in float32, so that its gradient is a float32 sum.
Tensor run_transposed(const Tensor& x, const Tensor& weight, const Tensor& bias, const ConvGeometry& at,
                      Size2d size) {
    const Tensor given[] = {x, weight, bias};
    return call(conv_transpose2d_op, In(given, bias.defined() ? 3 : 2), {.geometry = at, .size = size},
                {x.size(0), size.height, size.width, weight.size(3) * at.groups});
}

// ---- volumes

// A convolution's positions along the depth.
struct DepthTaps {
    std::int64_t kernel, stride, dilation, results, groups;
};

// The slice that each position of the kernel reads for each result, [results * kernel].
Tensor slices_read(const DepthTaps& at, Device device) {
    const TensorOptions integers{.dtype = int64, .device = device};
    return (arange(at.results, integers).unsqueeze(1) * at.stride + arange(at.kernel, integers) * at.dilation)
        .reshape({at.results * at.kernel});
}

// x [N, D, H, W, C] -> [N * results, H, W, groups * kernel * C / groups]: the slices that each result
// reads as further channels.
Tensor with_slices(const Tensor& x, const DepthTaps& at) {
    const std::int64_t n = x.size(0), height = x.size(2), width = x.size(3), channels = x.size(4);
    return index_select(x, 1, slices_read(at, x.device()))
        .reshape({n, at.results, at.kernel, height, width, at.groups, channels / at.groups})
        .permute({0, 1, 3, 4, 5, 2, 6})
        .reshape({n * at.results, height, width, at.kernel * channels});
}

// The transpose of with_slices(): the sum, for each of `depth` slices, of what results have of it.
Tensor summed_slices(const Tensor& g, const DepthTaps& at, std::int64_t n, std::int64_t depth, Dtype dtype) {
    const std::int64_t height = g.size(1), width = g.size(2), channels = g.size(3) / at.kernel;
    const Tensor slices =
        g.reshape({n, at.results, height, width, at.groups, at.kernel, channels / at.groups})
            .permute({0, 1, 5, 2, 3, 4, 6})
            .reshape({n, at.results * at.kernel, height, width, channels});
    return index_select_grad(slices, 1, slices_read(at, g.device()), depth, dtype);
}

// A weight [O, kernel depth, kernel height, kernel width, n] for such images.
Tensor image_weight(const Tensor& w) {
    return w.permute({0, 2, 3, 1, 4}).reshape({w.size(0), w.size(2), w.size(3), w.size(1) * w.size(4)});
}

// conv2d of the slices of x, padded along the depth already. The images with further channels, as large as
// x times the kernel's depth, are not saved: the gradient makes them again.
Tensor conv_of_slices(const Tensor& x, const Tensor& weight, const Tensor& bias, const ConvGeometry& image,
                      const DepthTaps& depth, Size2d size) {
    const auto forward = [=](autograd::Context& c, const Tensors& in) -> Tensors {
        c.saved = {c.needs_grad[1] ? in[0] : Tensor(), c.needs_grad[0] ? in[1] : Tensor()};
        return {run_conv2d(with_slices(in[0], depth), in[1], in.size() > 2 ? in[2] : Tensor(), image, size)};
    };
    const Dtype weight_dtype = weight.dtype(), bias_dtype = bias.defined() ? bias.dtype() : float32;
    const auto backward = [=, dtype = x.dtype(), volume = x.shape(),
                           kernel_size = image_size(weight.shape())](autograd::Context& c,
                                                                     const Tensors& gs) -> Tensors {
        const Tensor g = gs[0].contiguous();
        Tensors grads(c.needs_grad.size());
        if (c.needs_grad[0])
            grads[0] =
                summed_slices(conv2d_input_grad(g, cast(c.saved[1], dtype), image, {volume[2], volume[3]}),
                              depth, volume[0], volume[1], dtype);
        if (c.needs_grad[1])
            grads[1] =
                conv2d_weight_grad(g, with_slices(c.saved[0], depth), image, kernel_size, weight_dtype);
        if (grads.size() > 2 && c.needs_grad[2]) grads[2] = bias_grad(g, bias_dtype);
        return grads;
    };
    Tensors in{x, weight};
    if (bias.defined()) in.push_back(bias);
    return autograd::apply_function({.name = "conv3d"}, forward, backward, in)[0];
}

// x [N, D, H, W, C] as images, [N * D, H, W, C].
Tensor slices_of(const Tensor& x) {
    return x.reshape({x.size(0) * x.size(1), x.size(2), x.size(3), x.size(4)});
}

Tensor conv_of_volume(const Tensor& given, const Tensor& weight, const Tensor& bias, const Axes& axes,
                      Size3d size) {
    const Axis& d = axes.axis[0];
    const DepthTaps depth{weight.size(1), d.stride, d.dilation, size.depth, axes.groups};
    const Tensor w = image_weight(weight);
    Tensor x = d.padding == 0 ? given : pad(given, {{1, d.padding, d.padding}});
    x = cast(x, autocast_dtype(CastPolicy::low, x));
    const Size2d image{size.height, size.width};
    const Tensor y = depth.kernel == 1 && depth.stride == 1
                         ? run_conv2d(slices_of(x), w, bias, axes.image(), image)
                         : conv_of_slices(x, w, bias, axes.image(), depth, image);
    return y.reshape({x.size(0), size.depth, size.height, size.width, weight.size(0)});
}

Tensor transposed_of_volume(const Tensor& x, const Tensor& weight, const Tensor& bias, const Axes& axes,
                            Size3d size) {
    const Axis& d = axes.axis[0];
    const DepthTaps depth{weight.size(1), d.stride, d.dilation, x.size(1), axes.groups};
    const std::int64_t begin = d.padding, end = begin + size.depth;
    const std::int64_t covered = (depth.results - 1) * depth.stride + depth.dilation * (depth.kernel - 1) + 1;
    const Tensor parts =
        run_transposed(slices_of(x), image_weight(weight), {}, axes.image(), {size.height, size.width});
    const bool in_float = bias.defined() && is_16bit(parts.dtype());
    const Tensor y =
        summed_slices(parts, depth, x.size(0), std::max(covered, end), in_float ? float32 : parts.dtype())
            .slice(1, begin, end);
    return bias.defined() ? cast(y + bias, parts.dtype()) : y.contiguous();
}

Tensor convolution(const Tensor& given, const Tensor& weight, const Tensor& bias, Axes axes) {
    const Tensor x = with_same_padding(given, weight, axes);
    (void)checked_channels(axes, x, weight, bias, false);
    const Size3d size{checked_size(axes, x, weight, 0), checked_size(axes, x, weight, 1),
                      checked_size(axes, x, weight, 2)};
    const Size2d image{size.height, size.width};
    if (axes.first == 0) return conv_of_volume(x, weight, bias, axes, size);
    if (axes.first == 1) return run_conv2d(x, weight, bias, axes.image(), image);
    return run_conv2d(x.unsqueeze(1), weight.unsqueeze(1), bias, axes.image(), image).squeeze(1);
}

Tensor transposed(const Tensor& x, const Tensor& weight, const Tensor& bias, const Axes& axes) {
    (void)checked_channels(axes, x, weight, bias, true);
    const Size3d size{transposed_size(axes, x, weight, 0), transposed_size(axes, x, weight, 1),
                      transposed_size(axes, x, weight, 2)};
    const Size2d image{size.height, size.width};
    if (axes.first == 0) return transposed_of_volume(x, weight, bias, axes, size);
    if (axes.first == 1) return run_transposed(x, weight, bias, axes.image(), image);
    return run_transposed(x.unsqueeze(1), weight.unsqueeze(1), bias, axes.image(), image).squeeze(1);
}

// conv2d_add_relu as one op, of x, weight, bias and residual.
Tensor unrecorded_add_relu(In in, Axes axes) {
    const Tensor x = with_same_padding(in[0], in[1], axes);
    (void)checked_channels(axes, x, in[1], in[2], false);
    const Shape shape{x.size(0), checked_size(axes, x, in[1], 1), checked_size(axes, x, in[1], 2),
                      in[1].size(0)};
    check_residual(in[3], x, shape);
    return call(conv2d_add_relu_op, {x, in[1], in[2], in[3]}, {.geometry = axes.image()}, shape);
}

}  // namespace

Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias, const Conv1dOptions& o) {
    const CompositeOp here("conv1d");
    return convolution(x, weight, bias, {"conv1d", o.stride, o.padding, o.dilation, o.groups});
}
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias, const Conv2dOptions& o) {
    return convolution(x, weight, bias, {"conv2d", o.stride, o.padding, o.dilation, o.groups});
}
Tensor conv2d_add_relu(const Tensor& given, const Tensor& weight, const Tensor& bias, const Tensor& residual,
                       const Conv2dOptions& o) {
    const char* const op = "conv2d_add_relu";
    const CompositeOp here(op);
    const Tensor in[] = {given, weight, bias, residual};
    if (recording(given, weight, bias, residual) || !given.defined() ||
        !conv2d_add_relu_op.kernel(given.device().type())) {
        const Tensor y = convolution(given, weight, bias, {op, o.stride, o.padding, o.dilation, o.groups});
        check_residual(residual, given, y.shape());
        return relu(residual.defined() ? y + cast(residual, autocast_dtype(CastPolicy::low, residual)) : y);
    }
    return unrecorded_add_relu(in, {op, o.stride, o.padding, o.dilation, o.groups});
}
Tensor conv3d(const Tensor& x, const Tensor& weight, const Tensor& bias, const Conv3dOptions& o) {
    const CompositeOp here("conv3d");
    return convolution(x, weight, bias, {"conv3d", o.stride, o.padding, o.dilation, o.groups});
}

Tensor conv_transpose1d(const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const ConvTranspose1dOptions& o) {
    const CompositeOp here("conv_transpose1d");
    const AxisNumbers more = o.output_padding;
    return transposed(x, weight, bias,
                      {"conv_transpose1d", o.stride, o.padding, o.dilation, o.groups, &more});
}
Tensor conv_transpose2d(const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const ConvTranspose2dOptions& o) {
    const AxisNumbers more = o.output_padding;
    return transposed(x, weight, bias,
                      {"conv_transpose2d", o.stride, o.padding, o.dilation, o.groups, &more});
}
Tensor conv_transpose3d(const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const ConvTranspose3dOptions& o) {
    const CompositeOp here("conv_transpose3d");
    const AxisNumbers more = o.output_padding;
    return transposed(x, weight, bias,
                      {"conv_transpose3d", o.stride, o.padding, o.dilation, o.groups, &more});
}

}  // namespace mezzo
