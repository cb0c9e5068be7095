#include "mezzo/pool_layers.h"

#include <cmath>

#include <fmt/format.h>

namespace mezzo::nn {

std::string detail::text_of(const mezzo::detail::AxisNumbers& numbers) {
    bool equal = true;
    std::string all;
    for (int i = 0; i < numbers.count; ++i) {
        equal = equal && numbers.values[i] == numbers.values[0];
        all += fmt::format("{}{}", i > 0 ? ", " : "", numbers.values[i]);
    }
    return equal ? fmt::format("{}", numbers.values[0]) : "(" + all + ")";
}

std::string detail::text_of(const WindowText& o) {
    mezzo::detail::AxisNumbers stride = o.stride;
    for (int i = 0; i < stride.count; ++i)
        if (stride.values[i] == 0) stride.values[i] = o.kernel.values[i];
    std::string result = fmt::format("kernel_size={}, stride={}, padding={}", text_of(o.kernel),
                                     text_of(stride), text_of(o.padding));
    if (o.has_dilation) result += ", dilation=" + text_of(o.dilation);
    const auto flag = [&](bool shown, const char* name, bool value) {
        if (shown) result += fmt::format(", {}={}", name, value);
    };
    flag(o.has_ceil_mode, "ceil_mode", o.ceil_mode);
    flag(o.has_count_include_pad, "count_include_pad", o.count_include_pad);
    return result;
}

Upsample::Upsample(const UpsampleOptions& upsample_options) : options(upsample_options) {
    const ScaleFactor& scale = options.scale_factor;
    bool positive = true;
    for (const std::int64_t n : options.size) positive = positive && n > 0;
    for (int i = 0; i < scale.count; ++i)
        positive = positive && scale.values[i] > 0 && std::isfinite(scale.values[i]);
    check(positive && options.size.empty() != (scale.count == 0), ErrorKind::value, "Upsample: size is ",
          options.size, " and scale_factor ", scale.values[0], "; give one of them, and it must be positive");
}

Tensor Upsample::operator()(const Tensor& input) const {
    return with_hooks([this](const Tensor& x) { return resized(x); }, input);
}

Tensor Upsample::resized(const Tensor& x) const {
    const InterpolateOptions how{.mode = options.mode,
                                 .align_corners = options.align_corners,
                                 .scale_factor = options.scale_factor,
                                 .recompute_scale_factor = options.recompute_scale_factor};
    return options.size.empty() ? interpolate(x, how) : interpolate(x, options.size, how);
}

std::string Upsample::describe() const {
    constexpr const char* modes[] = {"nearest",   "bilinear", "bicubic",      "linear",
                                     "trilinear", "area",     "nearest-exact"};
    std::string by;
    const auto add = [&](double value) { by += fmt::format("{}{}", by.empty() ? "" : ", ", value); };
    for (const std::int64_t n : options.size) add(double(n));
    for (int i = 0; i < options.scale_factor.count; ++i) add(options.scale_factor.values[i]);
    if (by.find(',') != std::string::npos) by = "(" + by + ")";
    return fmt::format("{}={}, mode={}, align_corners={}", options.size.empty() ? "scale_factor" : "size", by,
                       modes[int(options.mode)], options.align_corners);
}

Tensor ZeroPad2d::operator()(const Tensor& input) const {
    check(input.defined() && input.dim() == 4, ErrorKind::shape,
          "ZeroPad2d: the input is not an image [batch, height, width, channels]");
    return with_hooks(
        [this](const Tensor& x) {
            return pad(x, {{1, padding.top, padding.bottom}, {2, padding.left, padding.right}});
        },
        input);
}

std::string ZeroPad2d::describe() const {
    return fmt::format("left={}, right={}, top={}, bottom={}", padding.left, padding.right, padding.top,
                       padding.bottom);
}

}  // namespace mezzo::nn
