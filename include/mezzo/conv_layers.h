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

namespace detail {

using mezzo::detail::AxisNumbers;

// A convolution layer's options.
struct ConvNumbers {
    const char* module;
    std::int64_t in, out, groups;
    AxisNumbers kernel, stride, padding, dilation, output_padding;
    bool transposed = false;
    PadMode padding_mode = PadMode::constant;
};
// Checks the options and makes the parameters; without bias that stays undefined.
void start_conv(const ConvNumbers& conv, Parameter& weight, Parameter* bias, const TensorOptions& options);
std::string describe_conv(const ConvNumbers& conv, bool bias);
// The weight with its last dimension second; other fields, and those of fewer dimensions, as they are.
Tensor channels_second(std::string_view field, const Tensor& tensor);
// x with the layer's padding around it.
Tensor padded_for(const ConvNumbers& conv, const Tensor& x);
// Replaces output_padding by that with which the result has the given size.
void fit_output(ConvNumbers& conv, const Tensor& x, const AxisNumbers& size);

}  // namespace detail

// Convolution with the function of image_ops.h. The weight is [out_channels, kernel sizes, in_channels /
// groups]; the bias, [out_channels], is undefined without. Error(value) for negative channels, channels that
// groups does not divide, and a kernel, stride, padding or dilation that the function would refuse. A
// padding_mode other than constant, PyTorch's "zeros", continues the input by pad().
#define MEZZO_CONV(Class, function, Size)                                                                  \
    struct Class##LayerOptions {                                                                           \
        Size stride = 1, padding = 0, dilation = 1;                                                        \
        std::int64_t groups = 1;                                                                           \
        bool bias = true;                                                                                  \
        PadMode padding_mode = PadMode::constant;                                                          \
        Device device = cpu_device;                                                                        \
        Dtype dtype = float32;                                                                             \
    };                                                                                                     \
    class Class : public Module {                                                                          \
    public:                                                                                                \
        Class(std::int64_t in, std::int64_t out, Size kernel, const Class##LayerOptions& options = {})     \
            : in_channels(in),                                                                             \
              out_channels(out),                                                                           \
              kernel_size(kernel),                                                                         \
              stride(options.stride),                                                                      \
              padding(options.padding),                                                                    \
              dilation(options.dilation),                                                                  \
              groups(options.groups),                                                                      \
              padding_mode(options.padding_mode) {                                                         \
            detail::start_conv(numbers(), weight, options.bias ? &bias : nullptr,                          \
                               {.dtype = options.dtype, .device = options.device});                        \
        }                                                                                                  \
        [[nodiscard]] Tensor operator()(const Tensor& input) const {                                       \
            const auto forward = [this](const Tensor& x) {                                                 \
                if (padding_mode != PadMode::constant)                                                     \
                    return function(detail::padded_for(numbers(), x), weight, bias,                        \
                                    {stride, 0, dilation, groups});                                        \
                return function(x, weight, bias, {stride, padding, dilation, groups});                     \
            };                                                                                             \
            return with_hooks(forward, input);                                                             \
        }                                                                                                  \
        std::string describe() const override { return detail::describe_conv(numbers(), bias.defined()); } \
        Tensor as_saved(std::string_view field, const Tensor& tensor) const override {                     \
            return detail::channels_second(field, tensor);                                                 \
        }                                                                                                  \
                                                                                                           \
        Parameter weight, bias;                                                                            \
        std::int64_t in_channels, out_channels;                                                            \
        Size kernel_size, stride, padding, dilation;                                                       \
        std::int64_t groups;                                                                               \
        PadMode padding_mode;                                                                              \
        MEZZO_MODULE(Class, weight, bias)                                                                  \
                                                                                                           \
    private:                                                                                               \
        detail::ConvNumbers numbers() const {                                                              \
            return {#Class,  in_channels, out_channels, groups, kernel_size, stride,                       \
                    padding, dilation,    Size(0),      false,  padding_mode};                             \
        }                                                                                                  \
    };
MEZZO_CONV(Conv1d, conv1d, std::int64_t)
MEZZO_CONV(Conv2d, conv2d, Size2d)
MEZZO_CONV(Conv3d, conv3d, Size3d)
#undef MEZZO_CONV

// Transposed convolution. The weight is [in_channels, kernel sizes, out_channels / groups]. Errors are
// those of convolutions, and Error(value) for an output_padding that the function would refuse. With an
// output_size a call takes the output_padding that gives it instead of its own.
#define MEZZO_CONV(Class, function, Size)                                                                  \
    struct Class##LayerOptions {                                                                           \
        Size stride = 1, padding = 0, output_padding = 0;                                                  \
        std::int64_t groups = 1;                                                                           \
        bool bias = true;                                                                                  \
        Size dilation = 1;                                                                                 \
        Device device = cpu_device;                                                                        \
        Dtype dtype = float32;                                                                             \
    };                                                                                                     \
    class Class : public Module {                                                                          \
    public:                                                                                                \
        Class(std::int64_t in, std::int64_t out, Size kernel, const Class##LayerOptions& options = {})     \
            : in_channels(in),                                                                             \
              out_channels(out),                                                                           \
              kernel_size(kernel),                                                                         \
              stride(options.stride),                                                                      \
              padding(options.padding),                                                                    \
              output_padding(options.output_padding),                                                      \
              dilation(options.dilation),                                                                  \
              groups(options.groups) {                                                                     \
            detail::start_conv(numbers(), weight, options.bias ? &bias : nullptr,                          \
                               {.dtype = options.dtype, .device = options.device});                        \
        }                                                                                                  \
        [[nodiscard]] Tensor operator()(const Tensor& input) const {                                       \
            return with_hooks(                                                                             \
                [this](const Tensor& x) {                                                                  \
                    return function(x, weight, bias, {stride, padding, output_padding, dilation, groups}); \
                },                                                                                         \
                input);                                                                                    \
        }                                                                                                  \
        [[nodiscard]] Tensor operator()(const Tensor& input, Size output_size) const {                     \
            const auto forward = [this, output_size](const Tensor& x) {                                    \
                detail::ConvNumbers fitted = numbers();                                                    \
                detail::fit_output(fitted, x, output_size);                                                \
                return function(x, weight, bias,                                                           \
                                {stride, padding, fitted.output_padding.as<Size>(), dilation, groups});    \
            };                                                                                             \
            return with_hooks(forward, input);                                                             \
        }                                                                                                  \
        std::string describe() const override { return detail::describe_conv(numbers(), bias.defined()); } \
        Tensor as_saved(std::string_view field, const Tensor& tensor) const override {                     \
            return detail::channels_second(field, tensor);                                                 \
        }                                                                                                  \
                                                                                                           \
        Parameter weight, bias;                                                                            \
        std::int64_t in_channels, out_channels;                                                            \
        Size kernel_size, stride, padding, output_padding, dilation;                                       \
        std::int64_t groups;                                                                               \
        MEZZO_MODULE(Class, weight, bias)                                                                  \
                                                                                                           \
    private:                                                                                               \
        detail::ConvNumbers numbers() const {                                                              \
            return {#Class, in_channels, out_channels, groups,         kernel_size,                        \
                    stride, padding,     dilation,     output_padding, true};                              \
        }                                                                                                  \
    };
MEZZO_CONV(ConvTranspose1d, conv_transpose1d, std::int64_t)
MEZZO_CONV(ConvTranspose2d, conv_transpose2d, Size2d)
MEZZO_CONV(ConvTranspose3d, conv_transpose3d, Size3d)
#undef MEZZO_CONV

}  // namespace mezzo::nn

#pragma GCC visibility pop
