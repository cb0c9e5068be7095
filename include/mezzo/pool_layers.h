// Pooling, resizing, padding and rearranging as layers, with PyTorch's names and defaults. They have no
// parameters; each calls the function of its name in image_ops.h, whose shapes and errors are its own.
//
//   const nn::MaxPool2d pool({.kernel_size = 3, .stride = 2, .padding = 1});
//   const nn::AdaptiveAvgPool2d mean(1);
//   y = mean(pool(x)).flatten(1);  // [32, 112, 112, 64] -> [32, 64]
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "mezzo/image_ops.h"
#include "mezzo/module.h"

#pragma GCC visibility push(default)

namespace mezzo::nn {

namespace detail {
// Texts of options as PyTorch prints them: 3, or (3, 5).
struct WindowText {
    mezzo::detail::AxisNumbers kernel, stride, padding, dilation;
    bool has_dilation, has_ceil_mode, ceil_mode, has_count_include_pad, count_include_pad;
};
std::string text_of(const mezzo::detail::AxisNumbers& numbers);
std::string text_of(const WindowText& window);
template <class Options> std::string describe_window(const Options& o) {
    WindowText text{o.kernel_size, o.stride, o.padding, o.kernel_size, false, false, false, false, false};
    if constexpr (requires { o.dilation; }) text.dilation = o.dilation;
    if constexpr (requires { o.ceil_mode; }) text.ceil_mode = o.ceil_mode;
    if constexpr (requires { o.count_include_pad; }) text.count_include_pad = o.count_include_pad;
    text.has_dilation = requires { o.dilation; };
    text.has_ceil_mode = requires { o.ceil_mode; };
    text.has_count_include_pad = requires { o.count_include_pad; };
    return text_of(text);
}
}  // namespace detail

// Pooling over windows, with the options of the function.
#define MEZZO_POOL(Class, function, Options, more)                                              \
    class Class : public Module {                                                               \
    public:                                                                                     \
        explicit Class(const Options& pool_options) : options(pool_options) {}                  \
        [[nodiscard]] Tensor operator()(const Tensor& input) const {                            \
            return with_hooks([this](const Tensor& x) { return function(x, options); }, input); \
        }                                                                                       \
        more std::string describe() const override { return detail::describe_window(options); } \
                                                                                                \
        Options options;                                                                        \
        MEZZO_MODULE(Class)                                                                     \
    };
MEZZO_POOL(AvgPool1d, avg_pool1d, AvgPool1dOptions, )
MEZZO_POOL(AvgPool2d, avg_pool2d, AvgPool2dOptions, )
MEZZO_POOL(AvgPool3d, avg_pool3d, AvgPool3dOptions, )
// Those of the largest element have with_indices(x), PyTorch's return_indices=True.
#define MEZZO_WITH_INDICES(function, option)                       \
    [[nodiscard]] Pooled with_indices(const Tensor& input) const { \
        const auto forward = [this](const Tensor& x) {             \
            const Pooled pooled = function(x, option);             \
            return Tensors{pooled.values, pooled.indices};         \
        };                                                         \
        const Tensors result = with_hooks(forward, input);         \
        return {result[0], result[1]};                             \
    }
MEZZO_POOL(MaxPool1d, max_pool1d, MaxPool1dOptions, MEZZO_WITH_INDICES(max_pool1d_with_indices, options))
MEZZO_POOL(MaxPool2d, max_pool2d, MaxPool2dOptions, MEZZO_WITH_INDICES(max_pool2d_with_indices, options))
MEZZO_POOL(MaxPool3d, max_pool3d, MaxPool3dOptions, MEZZO_WITH_INDICES(max_pool3d_with_indices, options))
#undef MEZZO_POOL

// Pooling to a size: nn::AdaptiveAvgPool2d(1), nn::AdaptiveAvgPool2d({5, 7}).
#define MEZZO_POOL(Class, function, Size, more)                                                              \
    class Class : public Module {                                                                            \
    public:                                                                                                  \
        explicit Class(Size size) : output_size(size) {}                                                     \
        [[nodiscard]] Tensor operator()(const Tensor& input) const {                                         \
            return with_hooks([this](const Tensor& x) { return function(x, output_size); }, input);          \
        }                                                                                                    \
        more std::string describe() const override { return "output_size=" + detail::text_of(output_size); } \
                                                                                                             \
        Size output_size;                                                                                    \
        MEZZO_MODULE(Class)                                                                                  \
    };
MEZZO_POOL(AdaptiveAvgPool1d, adaptive_avg_pool1d, std::int64_t, )
MEZZO_POOL(AdaptiveAvgPool2d, adaptive_avg_pool2d, Size2d, )
MEZZO_POOL(AdaptiveAvgPool3d, adaptive_avg_pool3d, Size3d, )
MEZZO_POOL(AdaptiveMaxPool1d, adaptive_max_pool1d, std::int64_t,
           MEZZO_WITH_INDICES(adaptive_max_pool1d_with_indices, output_size))
MEZZO_POOL(AdaptiveMaxPool2d, adaptive_max_pool2d, Size2d,
           MEZZO_WITH_INDICES(adaptive_max_pool2d_with_indices, output_size))
MEZZO_POOL(AdaptiveMaxPool3d, adaptive_max_pool3d, Size3d,
           MEZZO_WITH_INDICES(adaptive_max_pool3d_with_indices, output_size))
#undef MEZZO_POOL
#undef MEZZO_WITH_INDICES

// The inverse of max pooling: nn::MaxUnpool2d({.kernel_size = 2})(y, indices).
#define MEZZO_UNPOOL(Class, function, Options)                                                            \
    class Class : public Module {                                                                         \
    public:                                                                                               \
        explicit Class(const Options& unpool_options) : options(unpool_options) {}                        \
        [[nodiscard]] Tensor operator()(const Tensor& input, const Tensor& at) const {                    \
            return with_hooks(                                                                            \
                [this](const Tensor& x, const Tensor& indices) { return function(x, indices, options); }, \
                input, at);                                                                               \
        }                                                                                                 \
        [[nodiscard]] Tensor operator()(const Tensor& input, const Tensor& at,                            \
                                        decltype(Options::kernel_size) output_size) const {               \
            Options with_size = options;                                                                  \
            with_size.output_size = output_size;                                                          \
            return with_hooks(                                                                            \
                [&](const Tensor& x, const Tensor& indices) { return function(x, indices, with_size); },  \
                input, at);                                                                               \
        }                                                                                                 \
        std::string describe() const override { return detail::describe_window(options); }                \
                                                                                                          \
        Options options;                                                                                  \
        MEZZO_MODULE(Class)                                                                               \
    };
MEZZO_UNPOOL(MaxUnpool1d, max_unpool1d, MaxUnpool1dOptions)
MEZZO_UNPOOL(MaxUnpool2d, max_unpool2d, MaxUnpool2dOptions)
MEZZO_UNPOOL(MaxUnpool3d, max_unpool3d, MaxUnpool3dOptions)
#undef MEZZO_UNPOOL

struct UpsampleOptions {
    Shape size = {};                // of the result, one number for all axes or one for each
    ScaleFactor scale_factor = {};  // or factors
    InterpolateMode mode = InterpolateMode::nearest;
    bool align_corners = false;
    bool recompute_scale_factor = false;
};
// interpolate() of signals, images or volumes to a size, or by a factor. A size that is not whole is rounded
// down.
class Upsample : public Module {
public:
    // Error(value) unless either size or scale_factor is given, and is positive.
    explicit Upsample(const UpsampleOptions& upsample_options);
    [[nodiscard]] Tensor operator()(const Tensor& x) const;
    std::string describe() const override;

    UpsampleOptions options;
    MEZZO_MODULE(Upsample)

private:
    Tensor resized(const Tensor& x) const;
};

// Columns of zeros at the left and right, rows at the top and bottom; negative numbers crop.
struct ImagePadding {
    std::int64_t left = 0, right = 0, top = 0, bottom = 0;
};
// nn::ZeroPad2d(1), nn::ZeroPad2d({.left = 1, .top = 1})
class ZeroPad2d : public Module {
public:
    explicit ZeroPad2d(std::int64_t all_sides) : padding{all_sides, all_sides, all_sides, all_sides} {}
    explicit ZeroPad2d(const ImagePadding& image_padding) : padding(image_padding) {}
    // Error(shape) unless x is [N, H, W, C].
    [[nodiscard]] Tensor operator()(const Tensor& x) const;
    std::string describe() const override;

    ImagePadding padding;
    MEZZO_MODULE(ZeroPad2d)
};

// pad() as a layer: nn::Pad({{.dim = 1, .before = 2, .after = 2}}, PadMode::reflect) is PyTorch's
// ReflectionPad1d(2). It stands for ConstantPad, ReflectionPad, ReplicationPad and CircularPad of any
// number of dimensions.
class Pad : public Module {
public:
    explicit Pad(std::vector<Padding> sides, PadMode pad_mode = PadMode::constant, Scalar number = 0)
        : padding(std::move(sides)), mode(pad_mode), value(number) {}
    [[nodiscard]] Tensor operator()(const Tensor& input) const {
        return with_hooks([this](const Tensor& x) { return pad(x, padding, mode, value); }, input);
    }

    std::vector<Padding> padding;
    PadMode mode;
    Scalar value;
    MEZZO_MODULE(Pad)
};

// A function with one number as a layer.
#define MEZZO_LAYER(Class, function, number)                                                   \
    class Class : public Module {                                                              \
    public:                                                                                    \
        explicit Class(std::int64_t value) : number(value) {}                                  \
        [[nodiscard]] Tensor operator()(const Tensor& input) const {                           \
            return with_hooks([this](const Tensor& x) { return function(x, number); }, input); \
        }                                                                                      \
        std::string describe() const override { return #number "=" + std::to_string(number); } \
                                                                                               \
        std::int64_t number;                                                                   \
        MEZZO_MODULE(Class)                                                                    \
    };
MEZZO_LAYER(PixelShuffle, pixel_shuffle, upscale_factor)
MEZZO_LAYER(PixelUnshuffle, pixel_unshuffle, downscale_factor)
MEZZO_LAYER(ChannelShuffle, channel_shuffle, groups)
#undef MEZZO_LAYER

class Unfold : public Module {
public:
    explicit Unfold(const UnfoldOptions& unfold_options) : options(unfold_options) {}
    [[nodiscard]] Tensor operator()(const Tensor& input) const {
        return with_hooks([this](const Tensor& x) { return unfold(x, options); }, input);
    }
    std::string describe() const override { return detail::describe_window(options); }

    UnfoldOptions options;
    MEZZO_MODULE(Unfold)
};

class Fold : public Module {
public:
    Fold(Size2d size, const UnfoldOptions& fold_options) : output_size(size), options(fold_options) {}
    [[nodiscard]] Tensor operator()(const Tensor& input) const {
        return with_hooks([this](const Tensor& x) { return fold(x, output_size, options); }, input);
    }
    std::string describe() const override {
        return "output_size=" + detail::text_of(output_size) + ", " + detail::describe_window(options);
    }

    Size2d output_size;
    UnfoldOptions options;
    MEZZO_MODULE(Fold)
};

}  // namespace mezzo::nn

#pragma GCC visibility pop
