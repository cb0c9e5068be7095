// Element-wise kernels of three tensors: any strides, broadcast, of dtypes that differ.
#pragma once

#include "kernels/kernel.h"

namespace mezzo::kernels {

// x, a, b -> x + value a b.
struct AddCMul {
    static constexpr const char* name = "addcmul";
    double value = 1;
};
// x, a, b -> x + value a / b.
struct AddCDiv {
    static constexpr const char* name = "addcdiv";
    double value = 1;
};
// a, b, weight -> a + weight (b - a), from the nearer end.
struct Lerp {
    static constexpr const char* name = "lerp";
};
// The same of a and b with a number.
struct LerpScalar {
    static constexpr const char* name = "lerp_scalar";
    double weight = 0;
};

}  // namespace mezzo::kernels
