// Backward pass that reports each gradient as soon as no more parts of it can come.
#pragma once

#include "core/internal.h"
#include "mezzo/callback.h"
#include "mezzo/tensor.h"

namespace mezzo {

using GradientReady = autograd::Callback<void(const Tensor& leaf)>;

// loss.backward(), which calls ready(leaf) once for each leaf that gets a gradient, when it is complete: after
// the last node with an edge to the leaf, and, as a checkpointed segment may reach any leaf, after the last of
// these. Leaves with hooks are ready at the end. `ready` runs without history and autocast; if it throws, the
// pass ends. Throws Error(state) inside another backward pass.
void backward_until_ready(const Tensor& loss, const GradientReady& ready);

}  // namespace mezzo
