// Backward pass that reports each gradient as soon as no more parts of it can come.
#pragma once

#include "core/internal.h"
#include "mezzo/autograd.h"
#include "mezzo/tensor.h"

namespace mezzo {

using GradientReady = autograd::Callback<void(const Tensor& leaf)>;

// Runs loss.backward(), and calls ready(leaf) once for each leaf that gets a gradient when it is complete and
// the leaf may be written to: after the last node with an edge to it, after the last node that has saved a
// tensor in its storage, and after the last checkpointed segment, because a segment may reach any leaf.
// Leaves with hooks are ready at the end. `ready` runs without history and autocast. If it throws, the pass
// ends. Throws Error(state), which begins with `op`, inside another backward pass, and if gradients of the
// graph are reduced between processes.
void backward_until_ready(const char* op, const Tensor& loss, const GradientReady& ready);

}  // namespace mezzo
