// Backward pass that reports each gradient as soon as no more parts of it can come.
#pragma once

#include "core/internal.h"
#include "mezzo/autograd.h"
#include "mezzo/tensor.h"

namespace mezzo {

using GradientReady = autograd::Callback<void(const Tensor& leaf)>;

// Runs loss.backward(), and calls ready(leaf) once for each leaf that gets a gradient when it is complete:
// after the last node with an edge to the leaf, and after the last checkpointed segment, because a segment
// may reach any leaf. Leaves with hooks are ready at the end. `ready` runs without history and autocast. If
// it throws, the pass ends. Throws Error(state) inside another backward pass.
void backward_until_ready(const Tensor& loss, const GradientReady& ready);

}  // namespace mezzo
