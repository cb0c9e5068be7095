#include "mezzo/pool_layers.h"

#include <cmath>

#include <fmt/format.h>

namespace mezzo::nn {

namespace {

// 3, or (3, 5), or (1, 3, 5).
std::string text(std::int64_t size) { return fmt::format("{}", size); }
std::string text(Size2d size) {
    return size.height == size.width ? text(size.height) : fmt::format("({}, {})", size.height, size.width);
}
std::string text(Size3d size) {
    return size == Size3d(size.depth) ? text(size.depth)
                                      : fmt::format("({}, {}, {})", size.depth, size.height, size.width);
}

// The stride that 0 stands for.
std::int64_t step(std::int64_t stride, std::int64_t kernel) { return stride == 0 ? kernel : stride; }
Size2d step(Size2d stride, Size2d kernel) {
    return {step(stride.height, kernel.height), step(stride.width, kernel.width)};
}
Size3d step(Size3d stride, Size3d kernel) {
    return {step(stride.depth, kernel.depth), step(stride.height, kernel.height),
            step(stride.width, kernel.width)};
}

template <class Options> std::string described(const Options& o) {
    std::string result = fmt::format("kernel_size={}, stride={}, padding={}", text(o.kernel_size),
                                     text(step(o.stride, o.kernel_size)), text(o.padding));
    if constexpr (requires { o.dilation; }) result += fmt::format(", dilation={}", text(o.dilation));
    if constexpr (requires { o.ceil_mode; }) result += fmt::format(", ceil_mode={}", o.ceil_mode);
    if constexpr (requires { o.count_include_pad; })
        result += fmt::format(", count_include_pad={}", o.count_include_pad);
    return result;
}

const char* name_of(InterpolateMode mode) {
    constexpr const char* names[] = {"nearest",   "bilinear", "bicubic",      "linear",
                                     "trilinear", "area",     "nearest-exact"};
    return names[int(mode)];
}

}  // namespace

#define MEZZO_POOL(Class) \
    std::string Class::describe() const { return described(options); }
MEZZO_POOL(MaxPool1d)
MEZZO_POOL(MaxPool2d)
MEZZO_POOL(MaxPool3d)
MEZZO_POOL(AvgPool1d)
MEZZO_POOL(AvgPool2d)
MEZZO_POOL(AvgPool3d)
MEZZO_POOL(MaxUnpool1d)
MEZZO_POOL(MaxUnpool2d)
MEZZO_POOL(MaxUnpool3d)
MEZZO_POOL(Unfold)
#undef MEZZO_POOL

#define MEZZO_POOL(Class) \
    std::string Class::describe() const { return "output_size=" + text(output_size); }
MEZZO_POOL(AdaptiveAvgPool1d)
MEZZO_POOL(AdaptiveAvgPool2d)
MEZZO_POOL(AdaptiveAvgPool3d)
MEZZO_POOL(AdaptiveMaxPool1d)
MEZZO_POOL(AdaptiveMaxPool2d)
MEZZO_POOL(AdaptiveMaxPool3d)
#undef MEZZO_POOL

Upsample::Upsample(const UpsampleOptions& upsample_options) : options(upsample_options) {
    const ScaleFactor& scale = options.scale_factor;
    bool positive = true;
    for (const std::int64_t n : options.size) positive = positive && n > 0;
    for (int i = 0; i < scale.count; ++i)
        positive = positive && scale.values[i] > 0 && std::isfinite(scale.values[i]);
    check(positive && options.size.empty() != (scale.count == 0), ErrorKind::value, "Upsample: size is ",
          options.size, " and scale_factor ", scale.values[0], "; give one of them, and it must be positive");
}

Tensor Upsample::operator()(const Tensor& x) const {
    const InterpolateOptions how{.mode = options.mode,
                                 .align_corners = options.align_corners,
                                 .scale_factor = options.scale_factor,
                                 .recompute_scale_factor = options.recompute_scale_factor};
    return options.size.empty() ? interpolate(x, how) : interpolate(x, options.size, how);
}

std::string Upsample::describe() const {
    std::string by;
    for (const std::int64_t n : options.size) by += fmt::format("{}{}", by.empty() ? "" : ", ", n);
    for (int i = 0; i < options.scale_factor.count; ++i)
        by += fmt::format("{}{}", by.empty() ? "" : ", ", options.scale_factor.values[i]);
    if (by.find(',') != std::string::npos) by = "(" + by + ")";
    return fmt::format("{}={}, mode={}, align_corners={}", options.size.empty() ? "scale_factor" : "size", by,
                       name_of(options.mode), options.align_corners);
}

Tensor ZeroPad2d::operator()(const Tensor& x) const {
    check(x.defined() && x.dim() == 4, ErrorKind::shape,
          "ZeroPad2d: the input is not an image [batch, height, width, channels]");
    return pad(x, {{1, padding.top, padding.bottom}, {2, padding.left, padding.right}});
}

std::string ZeroPad2d::describe() const {
    return fmt::format("left={}, right={}, top={}, bottom={}", padding.left, padding.right, padding.top,
                       padding.bottom);
}

std::string Pad::describe() const {
    constexpr const char* names[] = {"constant", "reflect", "replicate", "circular"};
    std::string sides;
    for (const Padding& p : padding)
        sides += fmt::format("{}{{{}, {}, {}}}", sides.empty() ? "" : ", ", p.dim, p.before, p.after);
    return fmt::format("{}, mode={}", sides, names[int(mode)]);
}

std::string PixelShuffle::describe() const { return fmt::format("upscale_factor={}", upscale_factor); }
std::string PixelUnshuffle::describe() const { return fmt::format("downscale_factor={}", downscale_factor); }
std::string ChannelShuffle::describe() const { return fmt::format("groups={}", groups); }
std::string Fold::describe() const {
    return fmt::format("output_size={}, {}", text(output_size), described(options));
}

}  // namespace mezzo::nn
