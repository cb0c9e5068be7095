// The ways to compute attention on CUDA.
#pragma once

#include <cstdint>

#include "kernels/attention.h"

namespace mezzo::cuda {

enum class AttentionWay : std::uint8_t { plain, flash };

// The kernels of kernels/attention.h. False, and nothing done, if the way does not take the operands.
bool attention_forward(In in, const kernels::ScaledDotProductAttention& at, Out out, AttentionWay way);
bool attention_backward(In in, const kernels::ScaledDotProductAttentionGrad& at, Out out, AttentionWay way);

}  // namespace mezzo::cuda
