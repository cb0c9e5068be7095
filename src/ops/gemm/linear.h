// Parts of linear that merged linear layers and mse_loss share.
#pragma once

#include "kernels/activation.h"
#include "ops/common.h"

namespace mezzo {

// Throws the errors of linear() for tensors that do not fit, in the name of `op`.
void check_linear(const char* op, const Tensor& x, const Tensor& weight, const Tensor& bias);

// The activation, and dz = dy activation'(z). saved: the tensor that the gradient of the activation reads,
// which is the result of relu, the pre-activation of any other.
Tensor activated(const Tensor& z, Activation activation);
Tensor through_activation(Activation activation, const Tensor& dy, const Tensor& saved);

// activation(x W^T + b) in float8, of an Autocast scope with fp8 (linear_fp8.cpp).
// With several weights, x is quantized once, results are concatenated, and there is no activation. biases: as
// many as weights, or none.
Tensor linear_fp8(const amp::Fp8& fp8, const Tensor& x, const Tensors& weights, const Tensors& biases,
                  Activation activation);

// Fused activation and bias backward: gradients that the op which reads a linear layer's result may send to
// the layer (Node::send_inner).
enum LinearInner : std::uint8_t {
    of_pre_activation,  // [rows, out]: of x W^T + b
    of_bias,            // [out]: the column sums of the first
    linear_fused_gradients
};

// The gradient of the bias from dz [rows, out], the gradient of the pre-activation: its column sums, in
// float32 if dz has 16 bit and the gradient is stored in another dtype.
Tensor bias_grad(const Tensor& dz, Dtype wanted);

// Whether weight_and_bias_grad() may make the gradients of a linear layer's weight and bias from dz and x
// [rows, in]. It may on a device that has a kernel for both, if neither gradient is stored in 16 bit and
// the backward is not recorded.
bool makes_weight_and_bias_grad(const Tensor& dz, const Tensor& x, Dtype of_weight, Dtype of_bias);

// dz^T x and the column sums of dz, both in float32, float64 for float64. If `existing` is defined, the
// former is added to it, and `weight` is undefined.
struct WeightAndBias {
    Tensor weight, bias;
};
WeightAndBias weight_and_bias_grad(const Tensor& dz, const Tensor& x, const Tensor& existing);

// Whether one kernel computes the gradients of the pre-activation and of the bias, for gradients of this
// device and dtype.
bool fuses_bias_gradients(Device device, Dtype dtype);
// Whether a linear layer's backward also applies the activation backward of the linear layer before it.
bool fuses_layers(Device device, Dtype dtype);

}  // namespace mezzo
