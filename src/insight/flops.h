// How many floating-point operations an op needs: 2 for each multiplication and addition of its products, as
// torch.utils.flop_counter counts them.
#pragma once

#include "autograd/row.h"

namespace mezzo::insight {

// Of an op that has run: matrix products, convolutions, attention, and the ops that compute their gradients. 0 for
// all others, and where shapes are missing.
double flops_of(const Row& row, In given, In results) noexcept;
// Of the gradients that the node of a product passes on: a product of the size of the forward one for each operand that wants a
// gradient; for attention five products in place of the forward two, because the scores are computed again (Dao et al.,
// FlashAttention-2, section 4.1). 0 for nodes of other ops.
double backward_flops_of(const Node& node) noexcept;

}  // namespace mezzo::insight
