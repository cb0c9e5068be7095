// Whether a GradScaler's scale is in a gradient. Backward passes add to a gradient, and the scaler divides it
// in between: a sum of parts with the scale and parts without it has a meaning for nobody.
#pragma once

#include <cstdint>

#include "mezzo/tensor.h"

namespace mezzo {

struct TensorImpl;

// What a gradient is a sum of, as bits.
enum ScalePart : std::uint8_t {
    scaled_part = 1,    // came from a scaled output since the scaler divided the gradient, if it did
    unscaled_part = 2,  // has been divided by the scale
    both_parts = 3
};

// The parts of the leaf's gradient. No gradient, and one of zeros, has none.
std::uint8_t scale_parts(const TensorImpl& leaf);
// The same question about all of these parts, and a captured step asks it again before each replay.
bool has_scale_parts(TensorImpl& leaf, ScalePart parts);

// A backward is about to add to the leaf's gradient, or to make it.
void note_added(TensorImpl& leaf, bool scaled);
// A scaler has divided the leaf's gradient.
void note_unscaled(TensorImpl& leaf);
// The leaf's gradient is dropped, replaced or set to zero.
void forget_scale_parts(TensorImpl& leaf);
// Gives the leaf the same gradient in another form.
void replace_gradient(const Tensor& leaf, const Tensor& gradient);
// A replay has done to the gradient what a captured step did: `known` if that made it anew.
void note_replayed(TensorImpl& leaf, bool known, std::uint8_t parts);

// Gradients that come through this result of an op hold a scale from there on.
void mark_scaled(const Tensor& output);  // in autograd/node.cpp, which knows Node

}  // namespace mezzo
