// Convolutions as layers, with PyTorch's names, defaults and initial values: weight and bias start as
// U(-1/sqrt(fan_in), 1/sqrt(fan_in)) with fan_in = kernel size * weight.size(-1). Channels are the last
// dimension, of images and of weights; state_dict() shows the weights in PyTorch's order.
//
//   const nn::Conv2d conv(3, 64, 7, {.stride = 2, .padding = 3});
//   y = conv(x);  // [32, 224, 224, 3] -> [32, 112, 112, 64]
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "mezzo/image_ops.h"
#include "mezzo/module.h"

#pragma GCC visibility push(default)

namespace mezzo::nn {

struct Conv2dLayerOptions {
    Size2d stride = 1, padding = 0, dilation = 1;
    std::int64_t groups = 1;
    bool bias = true;
    Device device = cpu_device;
    Dtype dtype = float32;
};

// conv2d of images [N, H, W, in_channels] -> [N, Ho, Wo, out_channels].
class Conv2d : public Module {
public:
    // Error(value) for negative channels, channels that groups does not divide, and a kernel, stride, padding
    // or dilation that conv2d() would refuse.
    Conv2d(std::int64_t in, std::int64_t out, Size2d kernel, const Conv2dLayerOptions& options = {});
    [[nodiscard]] Tensor operator()(const Tensor& x) const {
        return conv2d(x, weight, bias, {stride, padding, dilation, groups});
    }
    std::string describe() const override;
    Tensor as_saved(std::string_view field, const Tensor& tensor) const override;

    Parameter weight;  // [out_channels, kernel height, kernel width, in_channels / groups]
    Parameter bias;    // [out_channels], undefined without bias
    std::int64_t in_channels, out_channels;
    Size2d kernel_size, stride, padding, dilation;
    std::int64_t groups;
    MEZZO_MODULE(Conv2d, weight, bias)
};

struct Conv1dLayerOptions {
    std::int64_t stride = 1, padding = 0, dilation = 1, groups = 1;
    bool bias = true;
    Device device = cpu_device;
    Dtype dtype = float32;
};

// conv1d of signals [N, L, in_channels] -> [N, Lo, out_channels].
class Conv1d : public Module {
public:
    // Errors are those of Conv2d.
    Conv1d(std::int64_t in, std::int64_t out, std::int64_t kernel, const Conv1dLayerOptions& options = {});
    [[nodiscard]] Tensor operator()(const Tensor& x) const {
        return conv1d(x, weight, bias, {stride, padding, dilation, groups});
    }
    std::string describe() const override;
    Tensor as_saved(std::string_view field, const Tensor& tensor) const override;

    Parameter weight;  // [out_channels, kernel size, in_channels / groups]
    Parameter bias;    // [out_channels], undefined without bias
    std::int64_t in_channels, out_channels, kernel_size, stride, padding, dilation, groups;
    MEZZO_MODULE(Conv1d, weight, bias)
};

struct ConvTranspose2dLayerOptions {
    Size2d stride = 1, padding = 0, output_padding = 0;
    std::int64_t groups = 1;
    bool bias = true;
    Size2d dilation = 1;
    Device device = cpu_device;
    Dtype dtype = float32;
};

// conv_transpose2d of images [N, H, W, in_channels] -> [N, Ho, Wo, out_channels].
class ConvTranspose2d : public Module {
public:
    // Errors are those of Conv2d, and Error(value) for an output_padding that conv_transpose2d() would
    // refuse.
    ConvTranspose2d(std::int64_t in, std::int64_t out, Size2d kernel,
                    const ConvTranspose2dLayerOptions& options = {});
    [[nodiscard]] Tensor operator()(const Tensor& x) const {
        return conv_transpose2d(x, weight, bias, {stride, padding, output_padding, dilation, groups});
    }
    std::string describe() const override;
    Tensor as_saved(std::string_view field, const Tensor& tensor) const override;

    Parameter weight;  // [in_channels, kernel height, kernel width, out_channels / groups]
    Parameter bias;    // [out_channels], undefined without bias
    std::int64_t in_channels, out_channels;
    Size2d kernel_size, stride, padding, output_padding, dilation;
    std::int64_t groups;
    MEZZO_MODULE(ConvTranspose2d, weight, bias)
};

}  // namespace mezzo::nn

#pragma GCC visibility pop
