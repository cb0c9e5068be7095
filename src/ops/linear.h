// Declarations shared by linear and its gradient.
#pragma once

#include "ops/common.h"

namespace mezzo {

// Throws the errors of linear() for tensors that do not fit, in the name of `op`.
void check_linear(const char* op, const Tensor& x, const Tensor& weight, const Tensor& bias);

// Gradients of values inside a linear layer (Row::inner_gradients), which the next linear layer may send to
// it (fused activation and bias backward).
enum LinearInner : std::uint8_t {
    of_before_activation,  // [rows, out]: of x W^T + b
    of_bias,               // [out]: the column sums of the first
    linear_inner_gradients
};

// The gradients of x [..., in], weight and, if there is one, bias. gs: the gradients of the results, followed
// by those of LinearInner, which replace them where they are defined.
Tensors linear_vjp(const Node& node, const Tensors& gs);

// Whether one kernel computes the gradients of the pre-activation and of the bias, for gradients of this
// device and dtype.
bool fuses_bias_gradients(Device device, Dtype dtype);
// Whether a linear layer's backward also applies the activation backward of the linear layer before it.
bool fuses_layers(Device device, Dtype dtype);

}  // namespace mezzo
