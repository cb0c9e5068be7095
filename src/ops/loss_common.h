// What all losses share: result dtypes, the three reductions, and the row that autocast reads.
#pragma once

#include "ops/common.h"

namespace mezzo {

// Loss kernels read any dtype and accumulate and give float32, or float64 as soon as an input is.
inline Dtype loss_dtype(Dtype a, Dtype b) { return a == float64 || b == float64 ? float64 : float32; }

// Inside an Autocast scope the loss stays float32; outside it has the dtype of what it was computed from.
Tensor finished_loss(const Tensor& loss, const Tensor& input, Dtype natural);

// Values per element reduced.
Tensor reduced(const Tensor& values, Reduction reduction);
// g times d(reduced)/d(value): g itself, g / count, or g, for the count of a mean.
Tensor spread_loss_grad(const Tensor& g, Reduction reduction, double count);

}  // namespace mezzo
