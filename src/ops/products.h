// Pieces of matmul and linear that their gradients share.
#pragma once

#include "kernels/activation.h"
#include "ops/common.h"

namespace mezzo {

// a b, both with at least two dimensions and one dtype, in the dtype `wanted` where the kernels can give it:
// the operands' own, or float32 from 16 bit. A weight's gradient leaves the product in float32 that way,
// never rounded to 16 bit.
Tensor product_as(const Tensor& a, const Tensor& b, Dtype wanted);

// The gradient of input i as product_as(a, b) gives it. Where the engine allows it, the product is added to
// the leaf's grad(), as a matrix of its rows, by the GEMM itself (beta = 1), and the result is undefined.
Tensor product_grad(const Node& c, int i, const Tensor& a, const Tensor& b);

// Whether the gradients by inputs 0 and 1 may be computed side by side (core/branch.h). Of two leaves both
// may be added to a grad() in place, and it may be the same one.
bool side_by_side(const Node& c);

// The sum over the rows of a matrix, in `dtype`.
Tensor column_sum(const Tensor& x, Dtype dtype);

// x with its last two dimensions laid out as a matrix product reads them (either may be the contiguous one).
Tensor gemm_ready(const Tensor& x);

// Throws unless a and b are floating and, after autocast, of one dtype.
void check_factors(const char* op, const Tensor& a, const Tensor& b);

}  // namespace mezzo
