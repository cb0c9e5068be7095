// Convolutions of images [N, H, W, C] with weights [O, kernel height, kernel width, C / groups]. Sums are
// float32 (float64 for float64) and rounded once.
#pragma once

#include <cstdint>

#include "kernels/kernel.h"
#include "mezzo/shape.h"

namespace mezzo::kernels {

// Geometry of a convolution. Result (ho, wo) reads x at (ho stride.height - padding.height + r
// dilation.height, wo stride.width - ...) for the kernel position (r, s) of the weight. Pixels outside x are
// 0.
struct ConvGeometry {
    Size2d stride = 1, padding = 0, dilation = 1;
    std::int64_t groups = 1;
};

// x [N, H, W, C], weight, optional bias [O] -> y [N, Ho, Wo, O].
struct Conv2d {
    static constexpr const char* name = "conv2d";
    ConvGeometry geometry = {};
};
// x, weight, optional bias, optional residual [N, Ho, Wo, O] -> relu(conv2d + residual), rounded once.
struct Conv2dAddRelu {
    static constexpr const char* name = "conv2d_add_relu";
    ConvGeometry geometry = {};
};
// g [N, Ho, Wo, O], weight, optional bias [C] -> the gradient of x [N, H, W, C] + bias; pixels of x that no
// window reads get the bias or 0. g may have fewer rows and columns than a convolution of x.
struct Conv2dInputGrad {
    static constexpr const char* name = "conv2d_input_grad";
    ConvGeometry geometry = {};
    Size2d size = 0;  // H, W: the result's own
};
// g [N, Ho, Wo, O], x [N, H, W, C] -> the gradient of the weight + beta * result. g may have fewer rows and
// columns than a convolution of x. The result may be float32 for 16-bit g and x.
struct Conv2dWeightGrad {
    static constexpr const char* name = "conv2d_weight_grad";
    ConvGeometry geometry = {};
    Size2d kernel_size = 1;  // of the weight: the result's own
    double beta = 0;         // 0: the result's old elements are not read
};

}  // namespace mezzo::kernels
