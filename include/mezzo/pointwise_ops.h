// Element-wise functions of several tensors, isnan() and isinf(). Inputs broadcast and are promoted as in a +
// b.
//
//   y = lerp(x, y, 0.25);  // x + 0.25 (y - x)
//   y = swiglu(matmul(x, weight));
//   y = where(isnan(y), 0, y);
#pragma once

#include <cstdint>

#include "mezzo/tensor.h"

#pragma GCC visibility push(default)

namespace mezzo {

// Whether x is NaN, boolean; integers are neither NaN nor infinite.
[[nodiscard]] Tensor isnan(const Tensor& x);
// Whether x is infinite, boolean.
[[nodiscard]] Tensor isinf(const Tensor& x);

// All three are floating, and 16-bit results are rounded once.
// a + weight (b - a)
[[nodiscard]] Tensor lerp(const Tensor& a, const Tensor& b, double weight);
[[nodiscard]] Tensor lerp(const Tensor& a, const Tensor& b, const Tensor& weight);
[[nodiscard]] Tensor addcmul(const Tensor& x, const Tensor& a, const Tensor& b,
                             double value = 1);  // x + value a b
[[nodiscard]] Tensor addcdiv(const Tensor& x, const Tensor& a, const Tensor& b, double value = 1);

// a sigmoid(b) of the two halves a and b of x along dim (Dauphin et al., arXiv 1612.08083). Error(shape) for
// an odd size.
[[nodiscard]] Tensor glu(const Tensor& x, std::int64_t dim = -1);
// silu(gate) * up (Shazeer, arXiv 2002.05202); of one tensor: of its halves along dim, gate first.
[[nodiscard]] Tensor swiglu(const Tensor& gate, const Tensor& up);
[[nodiscard]] Tensor swiglu(const Tensor& x, std::int64_t dim = -1);

}  // namespace mezzo

#pragma GCC visibility pop
