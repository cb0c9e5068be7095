// Whether a GradScaler's scale is in a gradient. Backward passes add to a gradient, and the scaler divides it
// in between: a sum of parts with the scale and parts without it has a meaning for nobody. Each gradient's
// slot (core/gradient_slot.h) knows its parts.
#pragma once

#include <cstdint>

#include "mezzo/tensor.h"

namespace mezzo {

// What a gradient is a sum of, as bits.
enum ScalePart : std::uint8_t {
    scaled_part = 1,    // came from a scaled output since the scaler divided the gradient, if it did
    unscaled_part = 2,  // has been divided by the scale
    both_parts = 3
};

// Gradients that come through this result of an op hold a scale from there on.
void mark_scaled(const Tensor& output);  // in autograd/node.cpp, which knows Node

}  // namespace mezzo
