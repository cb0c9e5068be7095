#include "mezzo/pool_layers.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace mezzo::nn {

namespace {

// 3, or (3, 5).
std::string text(Size2d size) {
    return size.height == size.width ? fmt::format("{}", size.height)
                                     : fmt::format("({}, {})", size.height, size.width);
}

// The stride that 0 stands for.
Size2d step(Size2d stride, Size2d kernel) {
    return {stride.height == 0 ? kernel.height : stride.height,
            stride.width == 0 ? kernel.width : stride.width};
}

template <class Options> std::string described_max(const Options& o) {
    return fmt::format("kernel_size={}, stride={}, padding={}, dilation={}, ceil_mode={}",
                       text(o.kernel_size), text(step(o.stride, o.kernel_size)), text(o.padding),
                       text(o.dilation), o.ceil_mode);
}

template <class Options> std::string described_mean(const Options& o) {
    return fmt::format("kernel_size={}, stride={}, padding={}, ceil_mode={}, count_include_pad={}",
                       text(o.kernel_size), text(step(o.stride, o.kernel_size)), text(o.padding), o.ceil_mode,
                       o.count_include_pad);
}

}  // namespace

std::string MaxPool2d::describe() const { return described_max(options); }
std::string MaxPool1d::describe() const { return described_max(options); }
std::string AvgPool2d::describe() const { return described_mean(options); }
std::string AvgPool1d::describe() const { return described_mean(options); }
std::string AdaptiveAvgPool2d::describe() const { return "output_size=" + text(output_size); }
std::string AdaptiveMaxPool2d::describe() const { return "output_size=" + text(output_size); }
std::string AdaptiveAvgPool1d::describe() const { return "output_size=" + text(output_size); }
std::string AdaptiveMaxPool1d::describe() const { return "output_size=" + text(output_size); }

Upsample::Upsample(const UpsampleOptions& upsample_options) : options(upsample_options) {
    const bool sized = options.size.height > 0 && options.size.width > 0, scaled = options.scale_factor > 0;
    const bool plain = (sized || options.size == Size2d(0)) && (scaled || options.scale_factor == 0);
    check(plain && sized != scaled && std::isfinite(options.scale_factor), ErrorKind::value,
          "Upsample: size is ", text(options.size), " and scale_factor ", options.scale_factor,
          "; give one of them, and it must be positive");
}

Tensor Upsample::operator()(const Tensor& x) const {
    const InterpolateOptions how{.mode = options.mode, .align_corners = options.align_corners};
    if (options.scale_factor == 0) return interpolate(x, options.size, how);
    check(x.defined() && x.dim() == 4, ErrorKind::shape,
          "Upsample: the input is not an image [batch, height, width, channels]");
    const auto scaled = [&](std::int64_t n) {
        return std::int64_t(
            std::min(double(n) * options.scale_factor, 0x1p40));  // interpolate() refuses that many
    };
    return interpolate(x, {scaled(x.size(1)), scaled(x.size(2))}, how);
}

std::string Upsample::describe() const {
    const char* const mode = options.mode == InterpolateMode::bilinear ? "bilinear" : "nearest";
    const std::string by = options.scale_factor == 0 ? "size=" + text(options.size)
                                                     : fmt::format("scale_factor={}", options.scale_factor);
    return fmt::format("{}, mode={}, align_corners={}", by, mode, options.align_corners);
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

}  // namespace mezzo::nn
