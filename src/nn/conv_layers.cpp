#include "mezzo/conv_layers.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

namespace mezzo::nn {

namespace {

void check_range(const char* module, const char* what, std::int64_t value, std::int64_t least) {
    const std::int64_t most = std::numeric_limits<std::int32_t>::max();
    check(value >= least && value <= most, ErrorKind::value, module, ": ", what, " ", value, " is not in [",
          least, ", ", most, "]");
}
void check_range(const char* module, const char* what, Size2d value, std::int64_t least) {
    check_range(module, what, value.height, least);
    check_range(module, what, value.width, least);
}

void check_channels(const char* module, const char* what, std::int64_t channels, std::int64_t groups) {
    check(channels >= 0, ErrorKind::value, module, ": ", what, " is ", channels,
          ", but must not be negative");
    check(channels % groups == 0, ErrorKind::value, module, ": ", groups, " groups do not divide ", what, " ",
          channels);
}

// Checks that the constructors of all convolution layers make.
template <class Size, class Options>
void check_layer(const char* module, std::int64_t in, std::int64_t out, Size kernel, const Options& options) {
    check_range(module, "kernel_size", kernel, 1);
    check_range(module, "stride", options.stride, 1);
    check_range(module, "padding", options.padding, 0);
    check_range(module, "dilation", options.dilation, 1);
    check_range(module, "groups", options.groups, 1);
    check_channels(module, "in_channels", in, options.groups);
    check_channels(module, "out_channels", out, options.groups);
}

// Initialises the weight with PyTorch's kaiming_uniform_(a = sqrt(5)), and the bias uniformly within the same
// bound.
template <class Options> void start(Parameter& weight, Parameter& bias, const Shape& shape,
                                    std::int64_t out_channels, const Options& options) {
    const TensorOptions like{.dtype = options.dtype, .device = options.device};
    const std::int64_t fan_in = Shape(shape.begin() + 1, shape.size() - 1).numel();
    const double bound = fan_in > 0 ? 1 / std::sqrt(double(fan_in)) : 0;
    weight = Parameter(empty(shape, like).uniform_(-bound, bound));
    if (options.bias) bias = Parameter(empty({out_channels}, like).uniform_(-bound, bound));
}

std::string text(Size2d size) { return fmt::format("({}, {})", size.height, size.width); }
std::string text(std::int64_t size) { return fmt::format("({},)", size); }

// Prints an option as PyTorch does: defaults are left out.
template <class Size> void append_unless(std::string& to, const char* what, Size value, Size standard) {
    if (!(value == standard)) to += fmt::format(", {}={}", what, text(value));
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

void check_output_padding(std::int64_t value, std::int64_t stride, std::int64_t dilation) {
    check(value >= 0 && value < std::max(stride, dilation), ErrorKind::value,
          "ConvTranspose2d: output_padding ", value, " is not in [0, ", std::max(stride, dilation),
          "), the larger of stride and dilation");
}

Tensor channels_second(std::string_view field, const Tensor& tensor) {
    if (field != "weight") return tensor;
    return tensor.dim() == 3 ? tensor.permute({0, 2, 1}) : tensor.permute({0, 3, 1, 2});
}

}  // namespace

Conv2d::Conv2d(std::int64_t in, std::int64_t out, Size2d kernel, const Conv2dLayerOptions& options)
    : in_channels(in),
      out_channels(out),
      kernel_size(kernel),
      stride(options.stride),
      padding(options.padding),
      dilation(options.dilation),
      groups(options.groups) {
    check_layer("Conv2d", in, out, kernel, options);
    start(weight, bias, {out, kernel.height, kernel.width, in / groups}, out, options);
}

std::string Conv2d::describe() const { return described(*this, Size2d(0)); }

Tensor Conv2d::as_saved(std::string_view field, const Tensor& tensor) const {
    return channels_second(field, tensor);
}

Conv1d::Conv1d(std::int64_t in, std::int64_t out, std::int64_t kernel, const Conv1dLayerOptions& options)
    : in_channels(in),
      out_channels(out),
      kernel_size(kernel),
      stride(options.stride),
      padding(options.padding),
      dilation(options.dilation),
      groups(options.groups) {
    check_layer("Conv1d", in, out, kernel, options);
    start(weight, bias, {out, kernel, in / groups}, out, options);
}

std::string Conv1d::describe() const { return described(*this, std::int64_t(0)); }

Tensor Conv1d::as_saved(std::string_view field, const Tensor& tensor) const {
    return channels_second(field, tensor);
}

ConvTranspose2d::ConvTranspose2d(std::int64_t in, std::int64_t out, Size2d kernel,
                                 const ConvTranspose2dLayerOptions& options)
    : in_channels(in),
      out_channels(out),
      kernel_size(kernel),
      stride(options.stride),
      padding(options.padding),
      output_padding(options.output_padding),
      dilation(options.dilation),
      groups(options.groups) {
    check_layer("ConvTranspose2d", in, out, kernel, options);
    check_output_padding(output_padding.height, stride.height, dilation.height);
    check_output_padding(output_padding.width, stride.width, dilation.width);
    start(weight, bias, {in, kernel.height, kernel.width, out / groups}, out, options);
}

std::string ConvTranspose2d::describe() const { return described(*this, output_padding); }

Tensor ConvTranspose2d::as_saved(std::string_view field, const Tensor& tensor) const {
    return channels_second(field, tensor);
}

}  // namespace mezzo::nn
