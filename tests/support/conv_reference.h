// Reference convolutions: sums over all kernel positions, in double.
#pragma once

#include <vector>

#include "kernels/conv.h"
#include "tests/support/op_cases.h"

namespace mezzo::test {

// Convolution: x [N, H, W, C], weight [O, kernel height, kernel width, C / groups] -> [N, Ho, Wo, O], where
// Ho and Wo are `size`.
std::vector<double> naive_conv2d(const Array& x, const Array& weight, const kernels::ConvGeometry& at,
                                 Size2d size);
// Gradient of the input: g [N, Ho, Wo, O], weight -> [N, H, W, C], where H and W are `size`.
std::vector<double> naive_input_grad(const Array& g, const Array& weight, const kernels::ConvGeometry& at,
                                     Size2d size);
// Gradient of the weight: g [N, Ho, Wo, O], x [N, H, W, C] -> [O, kernel height, kernel width, C / groups].
std::vector<double> naive_weight_grad(const Array& g, const Array& x, const kernels::ConvGeometry& at,
                                      Size2d kernel_size);

}  // namespace mezzo::test
