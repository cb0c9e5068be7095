// Device pieces shared by the GEMM's own kernels: access to operands of a run-time dtype, activations.
#pragma once

#include "cuda/kernel.cuh"
#include "core/activation.h"

namespace mezzo::cuda {

// Element i of an array of a floating dtype.
template <class Acc> __device__ Acc load(const void* p, Dtype dtype, std::int64_t i) {
    switch (dtype) {
        case Dtype::float16:
            return static_cast<Acc>(to_float(static_cast<const float16_t*>(p)[i]));
        case Dtype::bfloat16:
            return static_cast<Acc>(to_float(static_cast<const bfloat16_t*>(p)[i]));
        case Dtype::float32:
            return static_cast<Acc>(static_cast<const float*>(p)[i]);
        default:
            return static_cast<Acc>(static_cast<const double*>(p)[i]);
    }
}

template <class Acc> __device__ void store(void* p, Dtype dtype, std::int64_t i, Acc value) {
    switch (dtype) {
        case Dtype::float16:
            static_cast<float16_t*>(p)[i] = convert<float16_t>(value);
            break;
        case Dtype::bfloat16:
            static_cast<bfloat16_t*>(p)[i] = convert<bfloat16_t>(value);
            break;
        case Dtype::float32:
            static_cast<float*>(p)[i] = static_cast<float>(value);
            break;
        default:
            static_cast<double*>(p)[i] = static_cast<double>(value);
    }
}

// relu keeps NaN. gelu_tanh: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
template <class Acc> __device__ Acc activate(Activation activation, Acc x) {
    constexpr Acc root_half = Acc(0.70710678118654752440), root_2_pi = Acc(0.79788456080286535588);
    switch (activation) {
        case Activation::none:
            return x;
        case Activation::relu:
            return x < Acc(0) ? Acc(0) : x;
        case Activation::gelu:
            return Acc(0.5) * x * (Acc(1) + std::erf(x * root_half));
        case Activation::gelu_tanh:
            return Acc(0.5) * x * (Acc(1) + std::tanh(root_2_pi * (x + Acc(0.044715) * x * x * x)));
    }
    return x;
}

}  // namespace mezzo::cuda
