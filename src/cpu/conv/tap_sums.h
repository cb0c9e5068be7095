// Input gradients of convolutions of few channels, such as an image's three.
#pragma once

#include "core/tensor_impl.h"
#include "kernels/conv.h"

namespace mezzo::cpu {

// Whether add_taps() is for an input gradient: of one group of so few channels that they would fill a small
// part of a vector.
bool has_few_channels(const Tensor& g, const Tensor& weight, const kernels::ConvGeometry& at,
                      const Tensor& dx);

// dx = the input gradient + bias, which may be undefined. All are row-major.
void add_taps(const Tensor& g, const Tensor& weight, const Tensor& bias, const kernels::ConvGeometry& at,
              const Tensor& dx);

}  // namespace mezzo::cpu
