// Matrix products and the activations that they may contain.
#pragma once

#include "kernels/activation.h"
#include "kernels/kernel.h"

namespace mezzo::kernels {

// a [batch.., m, k], b [batch.., k, n]: 2-D or with equal batch dimensions; the last two may be transposed by
// strides -> a b + beta * result [batch.., m, n]. The result may be float32 for 16-bit operands.
struct MatMul {
    static constexpr const char* name = "matmul";
    double beta = 0;  // 0: the result's old elements are not read
};
// x [.., in], weight [out, in], optional bias [out] -> activation(x weight^T + bias) [.., out]. If there is a
// second result, it is the pre-activation (gelu, gelu_tanh), or, on CUDA, the relu mask as uint8
// (kernels/activation.h).
struct Linear {
    static constexpr const char* name = "linear";
    Activation activation = Activation::none;
};
// x [.., in], codes [out, in] (int8 or float8_e4m3fn) and their scale [out, groups], optional bias [out] ->
// activation(x (codes scale)^T + bias) [.., out]. Each of the equal groups of a row's codes has one factor of
// bfloat16 or float32; several groups have multiples of 32 codes.
struct QuantizedLinear {
    static constexpr const char* name = "quantized_linear";
    static constexpr bool any_dtype = true;
    Activation activation = Activation::none;
};
// g, saved [rows, cols] of one dtype, and the relu mask of saved (CUDA) or undefined -> the gradient of the
// pre-activation, and its column sums [cols] (float32; float64 for float64). saved is the activation's result
// for relu, its input otherwise.
struct ActivationGrad {
    static constexpr const char* name = "activation_grad";
    Activation activation = Activation::none;
};
// g [rows, out], weight [out, in], saved [rows, in] of one dtype, and the relu mask of saved (CUDA) or
// undefined -> the gradient of the pre-activation, from g weight as in ActivationGrad, and, if column_sums,
// its column sums.
struct LinearInputGrad {
    static constexpr const char* name = "linear_input_grad";
    Activation activation = Activation::none;
    bool column_sums = false;  // there is a second result
};

}  // namespace mezzo::kernels
