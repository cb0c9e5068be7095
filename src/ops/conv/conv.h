// The gradients of convolutions, and the decompositions of all ops: a strided slice of the padded image
// and a matrix product per kernel position.
#pragma once

#include "kernels/conv.h"
#include "ops/common.h"

namespace mezzo {

// The number of rows (or columns) of a convolution's result, from size + 2 padding input rows of which each
// window covers dilation (kernel - 1) + 1. 0 if no window fits, and -1 if a number is beyond 2^63 - 1.
std::int64_t conv_size(std::int64_t size, std::int64_t kernel, std::int64_t stride, std::int64_t padding,
                       std::int64_t dilation);

// The gradients of a convolution, from the gradient g of its result. The first returns that of the image,
// which has `size`; the second that of the weight, which has kernel_size, in float32 if the operands are 16
// bit and `wanted` is another dtype. g may have fewer rows and columns than the convolution.
Tensor conv2d_input_grad(const Tensor& g, const Tensor& weight, const kernels::ConvGeometry& at, Size2d size);
Tensor conv2d_weight_grad(const Tensor& g, const Tensor& x, const kernels::ConvGeometry& at,
                          Size2d kernel_size, Dtype wanted);

Tensors conv2d_decomposition(In in, const kernels::Conv2d& at);
Tensors conv2d_add_relu_decomposition(In in, const kernels::Conv2dAddRelu& at);
Tensors conv2d_input_grad_decomposition(In in, const kernels::Conv2dInputGrad& at);
Tensors conv2d_weight_grad_decomposition(In in, const kernels::Conv2dWeightGrad& at);

// Throws the errors of conv2d_add_relu() for a residual that does not fit x, or the result.
void check_residual(const Tensor& r, const Tensor& x, const Shape& result);

}  // namespace mezzo
