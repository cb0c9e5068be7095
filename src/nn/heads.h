// The heads of projections for attention.
#pragma once

#include <cstdint>
#include <vector>

#include "core/internal.h"
#include "mezzo/tensor.h"

namespace mezzo::nn {

// Splits x [batch, length, sum of heads * dim], concatenated projections, into views [batch, heads, length,
// dim], one per projection.
MEZZO_INTERNAL Tensors split_heads(const Tensor& x, const std::vector<std::int64_t>& heads);
// [batch, heads, length, dim] -> [batch, length, heads * dim].
MEZZO_INTERNAL Tensor join_heads(const Tensor& x);

}  // namespace mezzo::nn
