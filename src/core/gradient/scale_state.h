// Scale state of a gradient: scaled by a GradScaler, unscaled, or mixed. Backward passes add to a gradient,
// and the scaler may divide it or change its scale in between. A sum of parts with the scale and parts
// without it, or of parts under two scales, is meaningless, so the gradient's slot
// (core/gradient/gradient_slot.h) records the kinds of its parts.
//
// A scale has an id: the scaler's number and a count of the calls that may have changed the scale. An id
// that differs does not mean that the scale differs: after update() only the device has the scale, and
// nothing waits.
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

// Bits of ScalePart, and above them the id of the scale: 16 bits that count changes, and 13 bits that
// number the scaler. Number 0 means that no scale is known.
using ScaleState = std::uint32_t;
constexpr int scale_change_shift = 3, scaler_shift = 19;
constexpr ScaleState scale_kinds = (1U << scale_change_shift) - 1,
                     scale_changes = (1U << scaler_shift) - 1 - scale_kinds;
constexpr ScaleState first_scale(std::uint32_t scaler) { return scaler << scaler_shift; }
// The id of the same scaler's scale after `count` more changes.
constexpr ScaleState later_scale(ScaleState id, std::uint32_t count) {
    return (id & ~scale_changes) | ((id + (count << scale_change_shift)) & scale_changes);
}
// The number of changes between two ids of one scaler.
constexpr std::uint32_t changes_between(ScaleState earlier, ScaleState later) {
    return ((later - earlier) & scale_changes) >> scale_change_shift;
}
constexpr bool of_one_scaler(ScaleState a, ScaleState b) { return a >> scaler_shift == b >> scaler_shift; }

// Scale state of the sum of two gradients.
constexpr ScaleState sum_of_parts(ScaleState a, ScaleState b) {
    const ScaleState id_a = a & ~scale_kinds, id_b = b & ~scale_kinds, kinds = (a | b) & scale_kinds;
    if (id_a == 0 || id_b == 0 || id_a == id_b) return kinds | id_a | id_b;
    return kinds | two_scales | id_a;
}

// Whether a gradient of state p has scaled parts under another scale than the one of `parts`, if both are
// known.
constexpr bool under_other_scale(ScaleState p, ScaleState parts) {
    const ScaleState id_p = p & ~scale_kinds, id_parts = parts & ~scale_kinds;
    return (p & scaled_part) != 0 && id_p != 0 && id_parts != 0 && id_p != id_parts;
}
// Whether a gradient of state p has all kinds of `parts`, or scaled parts under different scales.
constexpr bool has_parts(ScaleState p, ScaleState parts) {
    const ScaleState kinds = parts & scale_kinds;
    return (p & kinds) == kinds || (p & two_scales) != 0 || under_other_scale(p, parts);
}

// Marks the op that made this tensor: gradients that come through it hold the scale from there on.
void mark_scaled(const Tensor& output, ScaleState parts);  // in autograd/node.cpp, which knows Node

}  // namespace mezzo
