// The two products of a convolution's windows: with the weight, and with the gradient of the result. A
// group's channels are neighbours in every operand.
#pragma once

#include "core/tensor_impl.h"
#include "cpu/conv/windows.h"
#include "kernels/activation.h"

namespace mezzo::cpu {

// Windows up to which a frozen weight has a packed copy. For more of them packing takes less than a hundredth
// of the time.
constexpr std::int64_t packed_windows = 4096;

// Layout of the result's pixels: pixel (i, j) of an image is pixel (begin.height + i * step.height, ...) of
// `data`.
struct Pixels {
    char* data = nullptr;
    Dtype type = float32;
    std::int64_t height = 0, width = 0, pixel = 0;  // as in Windows
    Size2d begin = 0, step = 1;

    // Whether pixels follow each other without gaps.
    bool dense() const { return step == Size2d(1); }
    std::int64_t element(std::int64_t image, std::int64_t i, std::int64_t j) const {
        return ((image * height + begin.height + i * step.height) * width + begin.width + j * step.width) *
               pixel;
    }
};

// The weight of a convolution: [outputs, taps, inputs of a group].
struct ConvWeight {
    const char* data = nullptr;
    Dtype type = float32;
    std::int64_t outputs = 0, taps = 0, inputs = 0;
    const Tensor* tensor = nullptr;  // the weight if kernels may keep a packed copy of it (packed_weight.h)

    std::int64_t row() const { return taps * inputs; }
};

// result[pixel, column] = bias[column] + sum over a pixel's window * the weight, for each group. The windows
// have the weight's inputs and the result its outputs, or the other way round if `transposed`. `activation`
// is none or relu.
struct WindowProduct {
    Windows windows;  // of the first group
    ConvWeight weight;
    bool transposed = false;
    std::int64_t groups = 1;
    Pixels result;
    const char* bias = nullptr;
    Dtype bias_type = float32;
    const char* residual = nullptr;  // of a dense result: added before the activation; type and layout of it
    Activation activation = Activation::none;

    std::int64_t group_outputs() const { return weight.outputs / groups; }
    std::int64_t columns() const { return transposed ? weight.inputs : group_outputs(); }
};
void multiply_windows(const WindowProduct& p);

// result [outputs, steps of a window] = beta * result + sum over pixels of the gradient times their windows.
struct WindowGradient {
    Windows windows;                 // of the first group
    const char* gradient = nullptr;  // one row of `outputs` for each window
    Dtype gradient_type = float32;
    std::int64_t outputs = 0, groups = 1;
    char* result = nullptr;
    Dtype result_type = float32;
    double beta = 0;

    std::int64_t group_outputs() const { return outputs / groups; }
};
void add_window_gradient(const WindowGradient& p);

}  // namespace mezzo::cpu
