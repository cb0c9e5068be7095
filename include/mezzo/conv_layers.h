// Convolutions as layers, with PyTorch's names, defaults and initial values: weight and bias start as
// U(-1/sqrt(fan_in), 1/sqrt(fan_in)) with fan_in = kernel size * weight.size(-1). Channels are the last
// dimension, of images and of weights; state_dict() shows the weights in PyTorch's order. Signals, images and
// volumes have the shapes of image_ops.h.
//
//   const nn::Conv2d conv(3, 64, 7, {.stride = 2, .padding = 3});
//   y = conv(x);  // [32, 224, 224, 3] -> [32, 112, 112, 64]
//   const nn::Conv2d same(64, 64, 3, {.padding = same_padding, .padding_mode = PadMode::reflect});
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "mezzo/image_ops.h"
#include "mezzo/module.h"

#pragma GCC visibility push(default)

namespace mezzo::nn {

// Convolution with the function of image_ops.h. The weight is [out_channels, kernel sizes, in_channels /
// groups]; the bias, [out_channels], is undefined without. Error(value) for negative channels, channels that
// groups does not divide, and a kernel, stride, padding or dilation that the function would refuse. A
// padding_mode other than constant, PyTorch's "zeros", continues the input by pad().
#define MEZZO_CONV(Class, function, Size)                                                               \
    struct Class##LayerOptions {                                                                        \
        Size stride = 1, padding = 0, dilation = 1;                                                     \
        std::int64_t groups = 1;                                                                        \
        bool bias = true;                                                                               \
        PadMode padding_mode = PadMode::constant;                                                       \
        Device device = cpu_device;                                                                     \
        Dtype dtype = float32;                                                                          \
    };                                                                                                  \
    class Class : public Module {                                                                       \
    public:                                                                                             \
        Class(std::int64_t in, std::int64_t out, Size kernel, const Class##LayerOptions& options = {}); \
        [[nodiscard]] Tensor operator()(const Tensor& x) const {                                        \
            if (padding_mode != PadMode::constant)                                                      \
                return function(padded(x), weight, bias, {stride, 0, dilation, groups});                \
            return function(x, weight, bias, {stride, padding, dilation, groups});                      \
        }                                                                                               \
        std::string describe() const override;                                                          \
        Tensor as_saved(std::string_view field, const Tensor& tensor) const override;                   \
                                                                                                        \
        Parameter weight, bias;                                                                         \
        std::int64_t in_channels, out_channels;                                                         \
        Size kernel_size, stride, padding, dilation;                                                    \
        std::int64_t groups;                                                                            \
        PadMode padding_mode;                                                                           \
        MEZZO_MODULE(Class, weight, bias)                                                               \
                                                                                                        \
    private:                                                                                            \
        Tensor padded(const Tensor& x) const;                                                           \
    };
MEZZO_CONV(Conv1d, conv1d, std::int64_t)
MEZZO_CONV(Conv2d, conv2d, Size2d)
MEZZO_CONV(Conv3d, conv3d, Size3d)
#undef MEZZO_CONV

// Transposed convolution. The weight is [in_channels, kernel sizes, out_channels / groups]. Errors are those of
// convolutions, and Error(value) for an output_padding that the function would refuse. With an output_size a
// call takes the output_padding that gives it instead of its own.
#define MEZZO_CONV(Class, function, Size)                                                               \
    struct Class##LayerOptions {                                                                        \
        Size stride = 1, padding = 0, output_padding = 0;                                               \
        std::int64_t groups = 1;                                                                        \
        bool bias = true;                                                                               \
        Size dilation = 1;                                                                              \
        Device device = cpu_device;                                                                     \
        Dtype dtype = float32;                                                                          \
    };                                                                                                  \
    class Class : public Module {                                                                       \
    public:                                                                                             \
        Class(std::int64_t in, std::int64_t out, Size kernel, const Class##LayerOptions& options = {}); \
        [[nodiscard]] Tensor operator()(const Tensor& x) const {                                        \
            return function(x, weight, bias, {stride, padding, output_padding, dilation, groups});      \
        }                                                                                               \
        [[nodiscard]] Tensor operator()(const Tensor& x, Size output_size) const;                       \
        std::string describe() const override;                                                          \
        Tensor as_saved(std::string_view field, const Tensor& tensor) const override;                   \
                                                                                                        \
        Parameter weight, bias;                                                                         \
        std::int64_t in_channels, out_channels;                                                         \
        Size kernel_size, stride, padding, output_padding, dilation;                                    \
        std::int64_t groups;                                                                            \
        MEZZO_MODULE(Class, weight, bias)                                                               \
    };
MEZZO_CONV(ConvTranspose1d, conv_transpose1d, std::int64_t)
MEZZO_CONV(ConvTranspose2d, conv_transpose2d, Size2d)
MEZZO_CONV(ConvTranspose3d, conv_transpose3d, Size3d)
#undef MEZZO_CONV

}  // namespace mezzo::nn

#pragma GCC visibility pop
