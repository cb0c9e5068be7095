// The gradient of index_select, which other ops use as a sum over equal indices.
#pragma once

#include "ops/common.h"

namespace mezzo {

// Like g with `size` slices along dim >= 0, each the sum of the slices of g whose index it is: summed in
// float32 (float64 for float64), rounded once to dtype.
Tensor index_select_grad(const Tensor& g, std::int64_t dim, const Tensor& index, std::int64_t size,
                         Dtype dtype);

}  // namespace mezzo
