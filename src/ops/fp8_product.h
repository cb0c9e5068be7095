// Products of quantized matrices.
#pragma once

#include "mezzo/quantize.h"
#include "ops/common.h"

namespace mezzo {

// a b^T for a [m, k] and b [n, k], in float32. Each has one scale, or one for each row.
Tensor product(const Quantized& a, const Quantized& b);

// The transposed matrix, for a tensor with one scale. With scales of rows codes are made anew, because the
// groups that share a scale are others.
Quantized transposed(const Quantized& q);

}  // namespace mezzo
