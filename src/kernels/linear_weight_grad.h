// The gradients of a linear layer's weight and bias together.
#pragma once

#include "kernels/kernel.h"

namespace mezzo::kernels {

// g [rows, out] and x [rows, in], contiguous and of one dtype -> g^T x + beta * result [out, in], and the
// column sums of g [out], which overwrite the second result. Both results are float32, float64 for float64.
// Only backends whose products can make the sums have this kernel.
struct LinearWeightGrad {
    static constexpr const char* name = "linear_weight_grad";
    double beta = 0;  // 0: the first result's old elements are not read
};

}  // namespace mezzo::kernels
