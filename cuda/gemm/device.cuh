// Device code shared by the GEMM's own kernels: access to operands of a run-time dtype, activations.
#pragma once

#include "cuda/visit_dtype.cuh"
#include "kernels/activation.h"

namespace mezzo::cuda {

// Element i of an array of a floating dtype.
template <class Acc> __device__ Acc load(const void* p, Dtype dtype, std::int64_t i) {
    return load_as<Acc, Dtypes::floating>(p, dtype, i);
}

template <class Acc> __device__ void store(void* p, Dtype dtype, std::int64_t i, Acc value) {
    store_as<Acc, Dtypes::floating>(p, dtype, i, value);
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
