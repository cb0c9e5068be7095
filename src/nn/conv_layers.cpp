#include "mezzo/conv_layers.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include <fmt/format.h>

namespace mezzo::nn {

namespace {

// The numbers of an option, one for each axis.
std::array<std::int64_t, 1> numbers(std::int64_t size) { return {size}; }
std::array<std::int64_t, 2> numbers(Size2d size) { return {size.height, size.width}; }
std::array<std::int64_t, 3> numbers(Size3d size) { return {size.depth, size.height, size.width}; }

std::int64_t size_of_axes(const std::array<std::int64_t, 1>& n) { return n[0]; }
Size2d size_of_axes(const std::array<std::int64_t, 2>& n) { return {n[0], n[1]}; }
Size3d size_of_axes(const std::array<std::int64_t, 3>& n) { return {n[0], n[1], n[2]}; }

template <class Size> constexpr int axes_of = int(std::tuple_size_v<decltype(numbers(Size(0)))>);

void check_number(const char* module, const char* what, std::int64_t value, std::int64_t least) {
    const std::int64_t most = std::numeric_limits<std::int32_t>::max();
    check(value >= least && value <= most, ErrorKind::value, module, ": ", what, " ", value, " is not in [",
          least, ", ", most, "]");
}
template <class Size> void check_range(const char* module, const char* what, Size size, std::int64_t least) {
    for (const std::int64_t value : numbers(size)) check_number(module, what, value, least);
}

void check_channels(const char* module, const char* what, std::int64_t channels, std::int64_t groups) {
    check(channels >= 0, ErrorKind::value, module, ": ", what, " is ", channels,
          ", but must not be negative");
    check(channels % groups == 0, ErrorKind::value, module, ": ", groups, " groups do not divide ", what, " ",
          channels);
}

// Checks that the constructors of all convolution layers make.
template <class Size, class Options> void check_layer(const char* module, std::int64_t in, std::int64_t out,
                                                      Size kernel, const Options& options, Size padding) {
    check_range(module, "kernel_size", kernel, 1);
    check_range(module, "stride", options.stride, 1);
    check_range(module, "padding", padding, 0);
    check_range(module, "dilation", options.dilation, 1);
    check_number(module, "groups", options.groups, 1);
    check_channels(module, "in_channels", in, options.groups);
    check_channels(module, "out_channels", out, options.groups);
}

// The padding with 0 for same_padding, which needs a stride of 1.
template <class Options> auto plain_padding(const char* module, const Options& options) {
    auto padding = numbers(options.padding);
    for (std::size_t d = 0; d < padding.size(); ++d) {
        if (padding[d] != same_padding) continue;
        check(numbers(options.stride)[d] == 1, ErrorKind::value, module, ": same_padding with stride ",
              numbers(options.stride)[d], "; it needs stride 1");
        padding[d] = 0;
    }
    return size_of_axes(padding);
}

// Initialises the weight with PyTorch's kaiming_uniform_(a = sqrt(5)), and the bias uniformly within the same
// bound.
template <class Size, class Options> void start(Parameter& weight, Parameter& bias, std::int64_t rows,
                                                Size kernel, std::int64_t columns, std::int64_t out_channels,
                                                const Options& options) {
    Shape shape{rows};
    for (const std::int64_t n : numbers(kernel)) shape.push_back(n);
    shape.push_back(columns);
    const TensorOptions like{.dtype = options.dtype, .device = options.device};
    const std::int64_t fan_in = Shape(shape.begin() + 1, shape.size() - 1).numel();
    const double bound = fan_in > 0 ? 1 / std::sqrt(double(fan_in)) : 0;
    weight = Parameter(empty(shape, like).uniform_(-bound, bound));
    if (options.bias) bias = Parameter(empty({out_channels}, like).uniform_(-bound, bound));
}

template <class Size> std::string text(Size size) {
    std::string result;
    for (const std::int64_t n : numbers(size)) result += fmt::format("{}{}", result.empty() ? "" : ", ", n);
    return fmt::format("({}{})", result, axes_of<Size> == 1 ? "," : "");
}

// Prints an option as PyTorch does: defaults are left out.
template <class Size> void append_unless(std::string& to, const char* what, Size value, Size standard) {
    if (value == Size(same_padding))
        to += fmt::format(", {}=same", what);
    else if (!(value == standard))
        to += fmt::format(", {}={}", what, text(value));
}

template <class Layer, class Size> std::string described(const Layer& layer, Size output_padding) {
    std::string result = fmt::format("{}, {}, kernel_size={}, stride={}", layer.in_channels,
                                     layer.out_channels, text(layer.kernel_size), text(layer.stride));
    append_unless(result, "padding", layer.padding, Size(0));
    append_unless(result, "dilation", layer.dilation, Size(1));
    append_unless(result, "output_padding", output_padding, Size(0));
    if (layer.groups != 1) result += fmt::format(", groups={}", layer.groups);
    if (!layer.bias.defined()) result += ", bias=false";
    return result;
}

const char* mode_name(PadMode mode) {
    return mode == PadMode::reflect ? "reflect" : mode == PadMode::replicate ? "replicate" : "circular";
}

template <class Layer> std::string described(const Layer& layer) {
    const std::string all = described(layer, decltype(layer.padding)(0));
    if (layer.padding_mode == PadMode::constant) return all;
    return all + fmt::format(", padding_mode={}", mode_name(layer.padding_mode));
}

void check_output_padding(const char* module, std::int64_t value, std::int64_t stride,
                          std::int64_t dilation) {
    check(value >= 0 && value < std::max(stride, dilation), ErrorKind::value, module, ": output_padding ",
          value, " is not in [0, ", std::max(stride, dilation), "), the larger of stride and dilation");
}

// The weight with its last dimension second.
Tensor channels_second(std::string_view field, const Tensor& tensor) {
    if (field != "weight") return tensor;
    Axes order{0, tensor.dim() - 1};
    for (int d = 1; d + 1 < tensor.dim(); ++d) order.push_back(d);
    return tensor.permute(order);
}

// x with the padding of a layer around it.
template <class Layer> Tensor padded_for(const Layer& layer, const Tensor& x) {
    const auto kernel = numbers(layer.kernel_size), padding = numbers(layer.padding),
               dilation = numbers(layer.dilation);
    check(x.dim() == int(kernel.size()) + 2, ErrorKind::shape, layer.type_name(), ": input ", x.shape(),
          " has ", x.dim(), " dimensions, not ", kernel.size() + 2);
    std::vector<Padding> sides;
    for (std::size_t d = 0; d < kernel.size(); ++d) {
        const std::int64_t total = dilation[d] * (kernel[d] - 1);
        const bool same = padding[d] == same_padding;
        sides.push_back(
            {std::int64_t(d) + 1, same ? total / 2 : padding[d], same ? total - total / 2 : padding[d]});
    }
    return pad(x, sides, layer.padding_mode);
}

// The output_padding with which a layer's result has the given size.
template <class Layer, class Size> Size output_padding_for(const Layer& layer, const Tensor& x, Size size) {
    const auto kernel = numbers(layer.kernel_size), padding = numbers(layer.padding),
               dilation = numbers(layer.dilation), stride = numbers(layer.stride);
    auto more = numbers(size);
    check(x.dim() == int(kernel.size()) + 2, ErrorKind::shape, layer.type_name(), ": input ", x.shape(),
          " has ", x.dim(), " dimensions, not ", kernel.size() + 2);
    for (std::size_t d = 0; d < kernel.size(); ++d)
        more[d] -= (x.size(int(d) + 1) - 1) * stride[d] - 2 * padding[d] + dilation[d] * (kernel[d] - 1) + 1;
    return size_of_axes(more);
}

}  // namespace

#define MEZZO_CONV(Class, Size)                                                                      \
    Class::Class(std::int64_t in, std::int64_t out, Size kernel, const Class##LayerOptions& options) \
        : in_channels(in),                                                                           \
          out_channels(out),                                                                         \
          kernel_size(kernel),                                                                       \
          stride(options.stride),                                                                    \
          padding(options.padding),                                                                  \
          dilation(options.dilation),                                                                \
          groups(options.groups),                                                                    \
          padding_mode(options.padding_mode) {                                                       \
        check_layer(#Class, in, out, kernel, options, plain_padding(#Class, options));               \
        start(weight, bias, out, kernel, in / groups, out, options);                                 \
    }                                                                                                \
    std::string Class::describe() const { return described(*this); }                                 \
    Tensor Class::as_saved(std::string_view field, const Tensor& tensor) const {                     \
        return channels_second(field, tensor);                                                       \
    }                                                                                                \
    Tensor Class::padded(const Tensor& x) const { return padded_for(*this, x); }
MEZZO_CONV(Conv1d, std::int64_t)
MEZZO_CONV(Conv2d, Size2d)
MEZZO_CONV(Conv3d, Size3d)
#undef MEZZO_CONV

#define MEZZO_CONV(Class, function, Size)                                                                \
    Class::Class(std::int64_t in, std::int64_t out, Size kernel, const Class##LayerOptions& options)     \
        : in_channels(in),                                                                               \
          out_channels(out),                                                                             \
          kernel_size(kernel),                                                                           \
          stride(options.stride),                                                                        \
          padding(options.padding),                                                                      \
          output_padding(options.output_padding),                                                        \
          dilation(options.dilation),                                                                    \
          groups(options.groups) {                                                                       \
        check_layer(#Class, in, out, kernel, options, padding);                                          \
        for (std::size_t d = 0; d < axes_of<Size>; ++d)                                                  \
            check_output_padding(#Class, numbers(output_padding)[d], numbers(stride)[d],                 \
                                 numbers(dilation)[d]);                                                  \
        start(weight, bias, in, kernel, out / groups, out, options);                                     \
    }                                                                                                    \
    Tensor Class::operator()(const Tensor& x, Size output_size) const {                                  \
        return function(x, weight, bias,                                                                 \
                        {stride, padding, output_padding_for(*this, x, output_size), dilation, groups}); \
    }                                                                                                    \
    std::string Class::describe() const { return described(*this, output_padding); }                     \
    Tensor Class::as_saved(std::string_view field, const Tensor& tensor) const {                         \
        return channels_second(field, tensor);                                                           \
    }
MEZZO_CONV(ConvTranspose1d, conv_transpose1d, std::int64_t)
MEZZO_CONV(ConvTranspose2d, conv_transpose2d, Size2d)
MEZZO_CONV(ConvTranspose3d, conv_transpose3d, Size3d)
#undef MEZZO_CONV

}  // namespace mezzo::nn
