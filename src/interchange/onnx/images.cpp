// Mappings of convolutions and pooling. mezzo's images are [N, H, W, C] and its weights [O, H, W, I]; in ONNX
// channels are the second dimension of both.
#include "interchange/onnx/mapping.h"
#include "kernels/conv.h"
#include "kernels/pool.h"

namespace mezzo::onnx {

namespace {

const Axes to_second{0, 3, 1, 2}, to_last{0, 2, 3, 1};

Shape permuted_shape(const Shape& shape, const Axes& axes) {
    Shape result = shape;
    for (int d = 0; d < axes.size(); ++d) result[d] = shape[int(axes[d])];
    return result;
}

// Adds an operator on images, with the first input and the result permuted.
Value of_image(const Call& call, const char* type, Values inputs, const Attributes& attributes) {
    Graph& g = call.graph;
    inputs[0] = g.permuted(inputs[0], to_second);
    const Value y = g.node(type, inputs, permuted_shape(call.shape(), to_second), call.dtype(), attributes);
    return g.permuted(y, to_last);
}

Ints pair(Size2d size) { return {size.height, size.width}; }

Attributes geometry(const kernels::ConvGeometry& at, const Shape& weight, Ints pads) {
    return {{"strides", pair(at.stride)},
            {"pads", std::move(pads)},
            {"dilations", pair(at.dilation)},
            {"group", at.groups},
            {"kernel_shape", Ints{weight[1], weight[2]}}};
}

Value conv(const Call& call, const kernels::ConvGeometry& at) {
    Graph& g = call.graph;
    Values inputs{call.in[0], g.permuted(call.in[1], to_second)};
    if (call.in.size() > 2 && call.in[2] != none) inputs.push_back(call.in[2]);
    const auto [height, width] = at.padding;
    return of_image(call, "Conv", inputs, geometry(at, g.shape(call.in[1]), {height, width, height, width}));
}
Value conv2d(const Call& call) { return conv(call, call.attributes<kernels::Conv2d>().geometry); }
Value conv2d_add_relu(const Call& call) {
    Graph& g = call.graph;
    Value y = g.permuted(conv(call, call.attributes<kernels::Conv2dAddRelu>().geometry), to_second);
    if (call.in[3] != none) y = g.like("Add", {y, g.permuted(call.in[3], to_second)});
    return g.permuted(g.like("Relu", {y}), to_last);
}

// The pads at the end are computed from the size of the result, so that output_padding is not needed.
Value conv_transpose2d(const Call& call) {
    const auto& all = call.attributes<kernels::Conv2dInputGrad>();
    const kernels::ConvGeometry& at = all.geometry;
    Graph& g = call.graph;
    const Shape &x = g.shape(call.in[0]), &weight = g.shape(call.in[1]);
    const auto behind = [](std::int64_t size, std::int64_t stride, std::int64_t kernel, std::int64_t dilation,
                           std::int64_t padding, std::int64_t result) {
        return (size - 1) * stride + dilation * (kernel - 1) + 1 - padding - result;
    };
    const std::int64_t below = behind(x[1], at.stride.height, weight[1], at.dilation.height,
                                      at.padding.height, all.size.height),
                       right = behind(x[2], at.stride.width, weight[2], at.dilation.width, at.padding.width,
                                      all.size.width);
    Attributes attributes = geometry(at, weight,
                                     {at.padding.height, at.padding.width, std::max<std::int64_t>(below, 0),
                                      std::max<std::int64_t>(right, 0)});
    attributes.push_back(
        {"output_padding", Ints{std::max<std::int64_t>(-below, 0), std::max<std::int64_t>(-right, 0)}});
    Values inputs{call.in[0], g.permuted(call.in[1], to_second)};
    if (call.in.size() > 2) inputs.push_back(call.in[2]);
    return of_image(call, "ConvTranspose", inputs, attributes);
}

// Pooling windows along one axis, as the operators define them.
struct Windows {
    std::int64_t kernel = 1, stride = 1, dilation = 1, before = 0, behind = 0;
    bool fits = true;  // false: the operators have no such windows
};
Windows windows_of(const kernels::PoolAxis& axis, std::int64_t size, std::int64_t results) {
    if (axis.adaptive) {
        const std::int64_t each = results > 0 ? size / results : 0;
        return {.kernel = each, .stride = each, .fits = results > 0 && size % results == 0};
    }
    Windows windows{
        .kernel = axis.kernel, .stride = axis.stride, .dilation = axis.dilation, .before = axis.padding};
    // The padding behind the image that gives this many results; with ceil_mode it may be larger than before
    // the image.
    const std::int64_t span = windows.dilation * (windows.kernel - 1) + 1;
    windows.behind = std::max(windows.before, (results - 1) * windows.stride + span - size - windows.before);
    windows.fits = windows.behind < windows.kernel;
    return windows;
}

Value pool(const Call& call, const char* type, const kernels::PoolWindow& window, bool max,
           bool count_include_pad) {
    const Shape &x = call.graph.shape(call.in[0]), &y = call.shape();
    const Windows rows = windows_of(window.height, x[1], y[1]),
                  columns = windows_of(window.width, x[2], y[2]);
    if (!rows.fits || !columns.fits) return none;
    // Implementations of the operator differ in whether a mean counts padding beyond that of both sides.
    const bool uneven = rows.behind != rows.before || columns.behind != columns.before;
    const bool dilated = rows.dilation != 1 || columns.dilation != 1;
    if (!max && (uneven || dilated)) return none;
    Attributes attributes{{"kernel_shape", Ints{rows.kernel, columns.kernel}},
                          {"strides", Ints{rows.stride, columns.stride}},
                          {"pads", Ints{rows.before, columns.before, rows.behind, columns.behind}}};
    if (max)
        attributes.push_back({"dilations", Ints{rows.dilation, columns.dilation}});
    else
        attributes.push_back({"count_include_pad", std::int64_t(count_include_pad)});
    return of_image(call, type, {call.in[0]}, attributes);
}
Value max_pool2d(const Call& call) {
    return pool(call, "MaxPool", call.attributes<kernels::MaxPool2d>().window, true, false);
}
Value avg_pool2d(const Call& call) {
    const auto& at = call.attributes<kernels::AvgPool2d>();
    const bool whole = at.window.height.adaptive && at.window.width.adaptive && at.size == Size2d(1);
    if (whole) return of_image(call, "GlobalAveragePool", {call.in[0]}, {});
    return pool(call, "AveragePool", at.window, false, at.count_include_pad);
}

constexpr MappingOf mappings[] = {
    {"conv2d", conv2d},         {"conv2d_add_relu", conv2d_add_relu}, {"conv_transpose2d", conv_transpose2d},
    {"max_pool2d", max_pool2d}, {"avg_pool2d", avg_pool2d},
};

}  // namespace

std::span<const MappingOf> image_mappings() { return mappings; }

}  // namespace mezzo::onnx
