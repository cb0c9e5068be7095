// Attention on CUDA, by the implementation that the caller chooses.
#pragma once

#include <cstdint>

#include "kernels/attention.h"

namespace mezzo::cuda {

enum class AttentionWay : std::uint8_t { plain, flash };

// Run the kernels of kernels/attention.h. Return false, with nothing done, if the implementation does not
// support the operands.
bool attention_forward(In in, const kernels::ScaledDotProductAttention& at, Out out, AttentionWay way);
bool attention_backward(In in, const kernels::ScaledDotProductAttentionGrad& at, Out out, AttentionWay way);

}  // namespace mezzo::cuda
