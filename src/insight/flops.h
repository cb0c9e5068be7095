// Counts the floating-point operations of an op: 2 for each multiplication and addition of its products, as
// torch.utils.flop_counter does.
#pragma once

#include "autograd/op.h"

namespace mezzo::insight {

// Returns the operations of an op that has run: matrix products, convolutions, attention, and the ops that
// compute their gradients. 0 for all other ops, and for missing shapes.
double flops_of(const AnyOp& op, In given, In results) noexcept;
// Returns the operations of the gradients that a node computes: a product as large as the forward one for
// each operand that wants a gradient; for attention five products instead of the two in forward, because the
// scores are recomputed (Dao et al., FlashAttention-2, section 4.1). 0 for nodes of other ops.
double backward_flops_of(const Node& node) noexcept;

}  // namespace mezzo::insight
