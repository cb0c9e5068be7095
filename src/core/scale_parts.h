// Whether a gradient holds a GradScaler's scale. Backward passes add to a gradient, and the scaler may divide
// it or change its scale in between. A sum of parts with the scale and parts without it, or of parts under two
// scales, is meaningless, so the gradient's slot (core/gradient_slot.h) knows of which parts it is a sum.
#pragma once

#include <cstdint>

#include "mezzo/tensor.h"

namespace mezzo {

// Bits of a gradient's parts.
enum ScalePart : std::uint32_t {
    scaled_part = 1,    // came through a scaled output, and has not been divided since
    unscaled_part = 2,  // has been divided by the scale
    both_parts = 3,
    two_scales = 4  // scaled parts under different scales
};

// Bits of ScalePart and, above them, the id of the scale; 0 stands for a scale that is not known.
using ScaleParts = std::uint32_t;
constexpr int scale_id_shift = 3;

constexpr ScaleParts scaled_by(std::uint32_t id) { return scaled_part | id << scale_id_shift; }

// Parts of the sum of two gradients.
constexpr ScaleParts sum_of_parts(ScaleParts a, ScaleParts b) {
    constexpr ScaleParts bits = (1U << scale_id_shift) - 1;
    const ScaleParts id_a = a & ~bits, id_b = b & ~bits, kinds = (a | b) & bits;
    if (id_a == 0 || id_b == 0 || id_a == id_b) return kinds | id_a | id_b;
    return kinds | two_scales | id_a;
}

// Whether a gradient with parts p has all of `parts`, or scaled parts under different scales.
constexpr bool has_parts(ScaleParts p, ScaleParts parts) {
    return (p & parts) == parts || (p & two_scales) != 0;
}

// Marks the op that made this tensor: gradients that come through it hold the scale from there on.
void mark_scaled(const Tensor& output, ScaleParts parts);  // in autograd/node.cpp, which knows Node

}  // namespace mezzo
