// Running products for gradients of other ops.
#pragma once

#include "ops/common.h"

namespace mezzo {

// The products of all elements before each one along dim, or with `reverse` after it; 1 where there is none.
Tensor exclusive_cumprod(const Tensor& x, std::int64_t dim, bool reverse);

}  // namespace mezzo
