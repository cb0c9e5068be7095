// Pooling of images over checked windows.
#pragma once

#include "kernels/pool.h"
#include "ops/common.h"

namespace mezzo {

// The largest elements, x [N, H, W, C] -> [N, size.height, size.width, C], and, if `positions` or x is
// recorded, their kernel positions (kernels::MaxPool2d). Error(value) for windows of more than 2^32
// positions.
Tensors max_pooled(const char* op, const Tensor& x, const kernels::PoolWindow& window, Size2d size,
                   bool positions);
// The means.
Tensor avg_pooled(const Tensor& x, const kernels::PoolWindow& window, Size2d size, bool count_include_pad);

}  // namespace mezzo
