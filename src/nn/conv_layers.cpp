#include "mezzo/conv_layers.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <fmt/format.h>

namespace mezzo::nn::detail {

namespace {

void check_number(const char* module, const char* what, std::int64_t value, std::int64_t least) {
    const std::int64_t most = std::numeric_limits<std::int32_t>::max();
    check(value >= least && value <= most, ErrorKind::value, module, ": ", what, " ", value, " is not in [",
          least, ", ", most, "]");
}

void check_channels(const char* module, const char* what, std::int64_t channels, std::int64_t groups) {
    check(channels >= 0, ErrorKind::value, module, ": ", what, " is ", channels,
          ", but must not be negative");
    check(channels % groups == 0, ErrorKind::value, module, ": ", groups, " groups do not divide ", what, " ",
          channels);
}

void check_axis(const ConvNumbers& c, int i) {
    const std::int64_t stride = c.stride.values[i], dilation = c.dilation.values[i],
                       more = c.output_padding.values[i];
    const bool same = c.padding.values[i] == same_padding && !c.transposed;
    check_number(c.module, "kernel_size", c.kernel.values[i], 1);
    check_number(c.module, "stride", stride, 1);
    check_number(c.module, "padding", same ? 0 : c.padding.values[i], 0);
    check_number(c.module, "dilation", dilation, 1);
    check(!same || stride == 1, ErrorKind::value, c.module, ": same_padding with stride ", stride,
          "; it needs stride 1");
    check(more >= 0 && more < std::max(stride, dilation), ErrorKind::value, c.module, ": output_padding ",
          more, " is not in [0, ", std::max(stride, dilation), "), the larger of stride and dilation");
}

// Appends an option as PyTorch prints it. A number is left out for all axes where it is `standard`.
void append(std::string& to, const char* what, const AxisNumbers& numbers, std::int64_t standard = -1) {
    bool shown = false;
    for (int i = 0; i < numbers.count; ++i) shown = shown || numbers.values[i] != standard;
    if (!shown) return;
    if (numbers.values[0] == same_padding) {
        to += fmt::format(", {}=same", what);
        return;
    }
    to += fmt::format(", {}=(", what);
    for (int i = 0; i < numbers.count; ++i) to += fmt::format("{}{}", i > 0 ? ", " : "", numbers.values[i]);
    to += numbers.count == 1 ? ",)" : ")";
}

void check_rank(const ConvNumbers& c, const Tensor& x) {
    check(x.dim() == c.kernel.count + 2, ErrorKind::shape, c.module, ": input ", x.shape(), " has ", x.dim(),
          " dimensions, not ", c.kernel.count + 2);
}

}  // namespace

void start_conv(const ConvNumbers& c, Parameter& weight, Parameter* bias, const TensorOptions& options) {
    check_number(c.module, "groups", c.groups, 1);
    Shape shape{c.transposed ? c.in : c.out};
    for (int i = 0; i < c.kernel.count; ++i) {
        check_axis(c, i);
        shape.push_back(c.kernel.values[i]);
    }
    check_channels(c.module, "in_channels", c.in, c.groups);
    check_channels(c.module, "out_channels", c.out, c.groups);
    shape.push_back((c.transposed ? c.out : c.in) / c.groups);
    // PyTorch's kaiming_uniform_(a = sqrt(5)) for the weight, and the same bound for the bias.
    const std::int64_t fan_in = Shape(shape.begin() + 1, shape.size() - 1).numel();
    const double bound = fan_in > 0 ? 1 / std::sqrt(double(fan_in)) : 0;
    weight = Parameter(empty(shape, options).uniform_(-bound, bound));
    if (bias != nullptr) *bias = Parameter(empty({c.out}, options).uniform_(-bound, bound));
}

std::string describe_conv(const ConvNumbers& c, bool bias) {
    std::string result = fmt::format("{}, {}", c.in, c.out);
    append(result, "kernel_size", c.kernel);
    append(result, "stride", c.stride);
    append(result, "padding", c.padding, 0);
    append(result, "dilation", c.dilation, 1);
    append(result, "output_padding", c.output_padding, 0);
    if (c.groups != 1) result += fmt::format(", groups={}", c.groups);
    if (!bias) result += ", bias=false";
    constexpr const char* modes[] = {"", ", padding_mode=reflect", ", padding_mode=replicate",
                                     ", padding_mode=circular"};
    return result + modes[int(c.padding_mode)];
}

Tensor channels_second(std::string_view field, const Tensor& tensor) {
    if (field != "weight" || tensor.dim() < 3) return tensor;
    Axes order{0, tensor.dim() - 1};
    for (int d = 1; d + 1 < tensor.dim(); ++d) order.push_back(d);
    return tensor.permute(order);
}

Tensor padded_for(const ConvNumbers& c, const Tensor& x) {
    check_rank(c, x);
    std::vector<Padding> sides;
    for (int i = 0; i < c.kernel.count; ++i) {
        const bool same = c.padding.values[i] == same_padding;
        const std::int64_t total =
            same ? c.dilation.values[i] * (c.kernel.values[i] - 1) : 2 * c.padding.values[i];
        sides.push_back({i + 1, total / 2, total - total / 2});
    }
    return pad(x, sides, c.padding_mode);
}

void fit_output(ConvNumbers& c, const Tensor& x, const AxisNumbers& size) {
    check_rank(c, x);
    for (int i = 0; i < size.count; ++i)
        c.output_padding.values[i] = size.values[i] - (x.size(i + 1) - 1) * c.stride.values[i] +
                                     2 * c.padding.values[i] -
                                     c.dilation.values[i] * (c.kernel.values[i] - 1) - 1;
}

}  // namespace mezzo::nn::detail
