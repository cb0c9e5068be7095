// Products of vectors and matrices, similarities and distances. Dtypes and arithmetic of products are those
// of matmul(). Similarities, distances and normalize() are computed in float32 at least; under autocast their
// results are float32.
//
//   y = einsum("bij,bjk->bik", {x, y});
//   y = addmm(bias, x, weight);  // bias + x weight
//   y = cosine_similarity(x, y, -1);
#pragma once

#include <cstdint>
#include <string_view>

#include "mezzo/tensor.h"

#pragma GCC visibility push(default)

namespace mezzo {

// [n], [m] -> [n, m]; dtypes as of a * b
[[nodiscard]] Tensor outer(const Tensor& a, const Tensor& b);
// The sum of a * b: [n], [n] -> 0-dim, floating. Under autocast dtypes are promoted, not lowered.
[[nodiscard]] Tensor dot(const Tensor& a, const Tensor& b);
// y[..., o] = a[..., i] weight[o, i, j] b[..., j] + bias[o], summed over i and j: a [..., in1], b [..., in2]
// with equal leading dimensions, weight [out, in1, in2], bias [out] or undefined.
[[nodiscard]] Tensor bilinear(const Tensor& a, const Tensor& b, const Tensor& weight,
                              const Tensor& bias = {});
// [batch, n, k], [batch, k, m] -> [batch, n, m]
[[nodiscard]] Tensor bmm(const Tensor& a, const Tensor& b);

struct AddMmOptions {
    double beta = 1, alpha = 1;  // with beta = 0 the input is not read, and its NaN does not count
};
// beta input + alpha a b: a [n, k], b [k, m], and input broadcasts to [n, m]. In 16 bit the product stays in
// float32 until it is added.
[[nodiscard]] Tensor addmm(const Tensor& input, const Tensor& a, const Tensor& b, AddMmOptions options = {});
// The same with a batch in front.
[[nodiscard]] Tensor baddbmm(const Tensor& input, const Tensor& a, const Tensor& b,
                             AddMmOptions options = {});

// Sums of products in Einstein's notation, as in NumPy and PyTorch: einsum("bij,bjk->bik", {a, b}). Letters
// name dimensions, "..." any number of them, which broadcast; a letter twice in one operand is the diagonal;
// without "->" the result has the letters that stand once, in alphabetical order, behind those of "...".
// Operands are floating and multiplied from left to right by matmul(). Error(value) for an equation that is
// not one, Error(shape) where it does not fit the operands.
[[nodiscard]] Tensor einsum(std::string_view equation, const Tensors& operands);

// The sum of products over the last `dims` dimensions of a and the first of b, or over dims_a of a and dims_b
// of b, which pair up in this order; the result has the other dimensions of a, then those of b. A size of 1
// is broadcast. Floating; under autocast dtypes are promoted, not lowered.
[[nodiscard]] Tensor tensordot(const Tensor& a, const Tensor& b, std::int64_t dims = 2);
[[nodiscard]] Tensor tensordot(const Tensor& a, const Tensor& b, const Axes& dims_a, const Axes& dims_b);
// The Kronecker product: blocks a[i, j] b, for any number of dimensions; dtypes as of a * b.
[[nodiscard]] Tensor kron(const Tensor& a, const Tensor& b);
// The sum of a matrix's diagonal, 0-dim; dtypes as of sum().
[[nodiscard]] Tensor trace(const Tensor& x);

// sum(a b) / (max(|a|, eps) max(|b|, eps)) along dim; a and b broadcast.
[[nodiscard]] Tensor cosine_similarity(const Tensor& a, const Tensor& b, std::int64_t dim = 1,
                                       double eps = 1e-8);
struct PairwiseDistanceOptions {
    double p = 2;  // >= 0; INFINITY for the maximum
    double eps = 1e-6;
    bool keepdim = false;
};
// The p-norm of a - b + eps over the last dimension.
[[nodiscard]] Tensor pairwise_distance(const Tensor& a, const Tensor& b,
                                       PairwiseDistanceOptions options = {});
// The p-norms of the differences of all rows of a [..., n, m] and b [..., k, m]: [..., n, k]; leading
// dimensions broadcast. p >= 0. The gradient is 0 where rows are equal. As in PyTorch, p = 2 with more than
// 25 rows is computed by a matrix product, which is fast and whose error is relative to the rows' norms;
// other cases make a tensor of all differences.
[[nodiscard]] Tensor cdist(const Tensor& a, const Tensor& b, double p = 2);
// x / max(p-norm of x along dim, eps).
[[nodiscard]] Tensor normalize(const Tensor& x, double p = 2, std::int64_t dim = 1, double eps = 1e-12);

}  // namespace mezzo

#pragma GCC visibility pop
