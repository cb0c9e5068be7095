// The heads of projections for attention.
#pragma once

#include <cstdint>
#include <vector>

#include "mezzo/tensor.h"

namespace mezzo::nn {

// Splits x [batch, length, sum of heads * dim], concatenated projections, into views [batch, heads, length,
// dim], one per projection.
Tensors split_heads(const Tensor& x, const std::vector<std::int64_t>& heads);
// [batch, heads, length, dim] -> [batch, length, heads * dim].
Tensor join_heads(const Tensor& x);

}  // namespace mezzo::nn
