// Matrix products for matmul, linear and their gradients.
#pragma once

#include "kernels/activation.h"
#include "ops/common.h"

namespace mezzo {

// The matrix product of a and b, both with at least two dimensions, in their common dtype; in float32 if that
// is a 16-bit dtype other than `wanted`. So a float32 weight's gradient leaves the product in float32 and is
// never rounded to 16 bit.
Tensor product_as(const Tensor& a, const Tensor& b, Dtype wanted);

// The gradient of input i, which is the product of a and b, as product_as() returns it. If the engine allows
// it, the GEMM adds the product (beta = 1) to an existing gradient. This is the leaf's grad(), and the result
// is undefined (Node::accumulator), or the float32 gradient that is already accumulated for input i, and the
// result is the sum in the shape of input i (Node::take_accumulated).
Tensor product_grad(const Node& c, int i, const Tensor& a, const Tensor& b);

// total += a b, for matrices of one dtype; total is contiguous and of that dtype, or float32. The version of
// its storage grows.
void add_product(const Tensor& a, const Tensor& b, const Tensor& total);

// x [..., n] as the matrix of its rows.
Tensor matrix_of(const Tensor& x);

// The sum over the rows of a matrix, in `dtype`.
Tensor column_sum(const Tensor& x, Dtype dtype);

// x with its last two dimensions laid out as a matrix product reads them: one of them, no matter which, has
// stride 1.
Tensor gemm_ready(const Tensor& x);

// Throws Error(dtype) unless a and b are floating and, after autocast, of one dtype.
void check_factors(const char* op, const Tensor& a, const Tensor& b);

}  // namespace mezzo
