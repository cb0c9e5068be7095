// Convolutions in terms of other ops: a strided slice of the padded image and a matrix product per tap.
#pragma once

#include "kernels/conv.h"
#include "ops/common.h"

namespace mezzo {

// The rows (or columns) of a convolution's result: size + 2 padding places, of which each window covers
// dilation (kernel - 1) + 1. 0 where no window fits, and -1 where a number is beyond 2^63 - 1.
std::int64_t conv_size(std::int64_t size, std::int64_t kernel, std::int64_t stride, std::int64_t padding,
                       std::int64_t dilation);

Tensors conv2d_decomposition(In in, const kernels::Conv2d& at);
Tensors conv2d_input_grad_decomposition(In in, const kernels::Conv2dInputGrad& at);
Tensors conv2d_weight_grad_decomposition(In in, const kernels::Conv2dWeightGrad& at);

}  // namespace mezzo
