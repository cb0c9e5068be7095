// Code shared by the two forms of attention: with query, key and value as three tensors, or packed in one.
#pragma once

#include "kernels/attention.h"
#include "ops/elementwise/dropout.h"

namespace mezzo {

// The decompositions of the op and its gradient, on [batch, length, heads, dim].
Tensors attention_decomposition(In in, const kernels::ScaledDotProductAttention& at);
Tensors attention_grad_decomposition(In in, const kernels::ScaledDotProductAttentionGrad& at);

// Throws Error(value), Error(shape) or Error(dtype), in the name of `op`, if the options do not fit each
// other or the scores [batch, heads, query, key].
void check_attention_options(const char* op, const Shape& scores, const AttentionOptions& options);

// x, or a copy, with stride 1 in the last dimension, as the kernels need it.
Tensor with_unit_stride(const Tensor& x);

// The options as attributes; `dim` decides the scale that 0 stands for. The dropout is left out.
kernels::ScaledDotProductAttention attention_attributes(const AttentionOptions& options, std::int64_t dim);

// Calls use(attributes), with reserved random numbers if weights are dropped.
template <class F> Tensor with_attention_attributes(const AttentionOptions& options, const Shape& scores,
                                                    std::int64_t dim, const F& use) {
    kernels::ScaledDotProductAttention at = attention_attributes(options, dim);
    if (!options.training || options.dropout_p == 0) return use(at);
    at.dropout_p = options.dropout_p;
    return with_dropout_stream(scores.numel(), [&](const RandomState& stream) {
        at.stream = stream;
        return use(at);
    });
}

}  // namespace mezzo
