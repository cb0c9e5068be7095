// Pooling, resizing and padding as layers, with PyTorch's names and defaults. They have no parameters; each
// calls the function of its name in image_ops.h, whose shapes and errors are its own.
//
//   const nn::MaxPool2d pool({.kernel_size = 3, .stride = 2, .padding = 1});
//   const nn::AdaptiveAvgPool2d mean(1);
//   y = mean(pool(x)).flatten(1);  // [32, 112, 112, 64] -> [32, 64]
#pragma once

#include <cstdint>
#include <string>

#include "mezzo/image_ops.h"
#include "mezzo/module.h"

#pragma GCC visibility push(default)

namespace mezzo::nn {

// Pooling over windows, with the options of the function.
#define MEZZO_POOL(Class, function, Options)                                                    \
    class Class : public Module {                                                               \
    public:                                                                                     \
        explicit Class(const Options& pool_options) : options(pool_options) {}                  \
        [[nodiscard]] Tensor operator()(const Tensor& x) const { return function(x, options); } \
        std::string describe() const override;                                                  \
                                                                                                \
        Options options;                                                                        \
        MEZZO_MODULE(Class)                                                                     \
    };
MEZZO_POOL(MaxPool2d, max_pool2d, MaxPool2dOptions)
MEZZO_POOL(AvgPool2d, avg_pool2d, AvgPool2dOptions)
MEZZO_POOL(MaxPool1d, max_pool1d, MaxPool1dOptions)
MEZZO_POOL(AvgPool1d, avg_pool1d, AvgPool1dOptions)
#undef MEZZO_POOL

// Pooling to a size: nn::AdaptiveAvgPool2d(1), nn::AdaptiveAvgPool2d({5, 7}).
#define MEZZO_POOL(Class, function, Size)                                                           \
    class Class : public Module {                                                                   \
    public:                                                                                         \
        explicit Class(Size size) : output_size(size) {}                                            \
        [[nodiscard]] Tensor operator()(const Tensor& x) const { return function(x, output_size); } \
        std::string describe() const override;                                                      \
                                                                                                    \
        Size output_size;                                                                           \
        MEZZO_MODULE(Class)                                                                         \
    };
MEZZO_POOL(AdaptiveAvgPool2d, adaptive_avg_pool2d, Size2d)
MEZZO_POOL(AdaptiveMaxPool2d, adaptive_max_pool2d, Size2d)
MEZZO_POOL(AdaptiveAvgPool1d, adaptive_avg_pool1d, std::int64_t)
MEZZO_POOL(AdaptiveMaxPool1d, adaptive_max_pool1d, std::int64_t)
#undef MEZZO_POOL

struct UpsampleOptions {
    Size2d size = 0;  // of the result, or 0: the image's size times scale_factor
    double scale_factor = 0;
    InterpolateMode mode = InterpolateMode::nearest;
    bool align_corners = false;
};
// interpolate() to a size, or by a factor. A size that is not whole is rounded down, and coordinates follow
// from the sizes: PyTorch's recompute_scale_factor=True.
class Upsample : public Module {
public:
    // Error(value) unless either size or scale_factor is given, and is positive.
    explicit Upsample(const UpsampleOptions& upsample_options);
    [[nodiscard]] Tensor operator()(const Tensor& x) const;
    std::string describe() const override;

    UpsampleOptions options;
    MEZZO_MODULE(Upsample)
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

}  // namespace mezzo::nn

#pragma GCC visibility pop
