// The gradient with which a backward pass begins that was given none.
#pragma once

#include "mezzo/tensor.h"

namespace mezzo {

// A one with the shape, dtype and device of the output, which has one element. No launch, where a one that an
// earlier backward pass began with is still a one, and nobody holds it any more.
Tensor implied_seed(const Tensor& output);

}  // namespace mezzo
