// The p-norm, for vector_norm() and the distances.
#pragma once

#include "ops/common.h"

namespace mezzo {

// (sum |x|^p)^(1/p) over axes, in float32 at least. Elements that are 0 have the gradient 0.
Tensor p_norm(const Tensor& x, double p, const Axes& axes, bool keepdim);

}  // namespace mezzo
