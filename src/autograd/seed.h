// Implied root gradient of a backward pass.
#pragma once

#include "mezzo/tensor.h"

namespace mezzo {

// A 1 with the shape, dtype and device of the output, which has one element. Launches nothing if the root
// gradient of an earlier backward pass is unchanged and has no other reference.
Tensor implied_seed(const Tensor& output);

}  // namespace mezzo
