// Whether a gradient holds a GradScaler's scale. Backward passes add to a gradient, and the scaler may divide
// it in between. A sum of parts with the scale and parts without it is meaningless, so the gradient's slot
// (core/gradient_slot.h) knows of which parts it is a sum.
#pragma once

#include <cstdint>

#include "mezzo/tensor.h"

namespace mezzo {

// What a gradient is a sum of, as bits.
enum ScalePart : std::uint8_t {
    scaled_part = 1,    // came through a scaled output, and has not been divided since
    unscaled_part = 2,  // has been divided by the scale
    both_parts = 3
};

// Marks the op that made this tensor: gradients that come through it hold a scale from there on.
void mark_scaled(const Tensor& output);  // in autograd/node.cpp, which knows Node

}  // namespace mezzo
