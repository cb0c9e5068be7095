// Ops for self-attention without copies: merged linear projections, attention that reads query, key and value
// from their one result, and rotary position embedding. Errors are those of ops.h.
//
//   const nn::Linear q(512, 512), k(512, 512), v(512, 512);
//   const Tensor qkv = merged_linear(x, {q.weight, k.weight, v.weight});  // x [32, 128, 512]
//   y = packed_attention(qkv.reshape({32, 128, 3, 8, 64}), {.causal = true});  // 8 heads of 64
#pragma once

#include <cstdint>

#include "mezzo/ops.h"

#pragma GCC visibility push(default)

namespace mezzo {

// Merged linear layers: linear(x, weight, bias) for each weight, concatenated in the last dimension. x [...,
// in], weights [out_i, in], biases [out_i] or undefined, or an empty list; result [..., sum of out_i]. Dtypes
// and arithmetic are those of matmul(). It is one matrix product if the weights are contiguous in memory, one
// directly after the other, such as slices of one tensor or the projections of nn::BertSelfAttention;
// otherwise one product for each weight. Throws Error(value) without a weight, or if the numbers of weights
// and biases differ.
[[nodiscard]] Tensor merged_linear(const Tensor& x, const Tensors& weights, const Tensors& biases = {});

// Self-attention by scaled_dot_product_attention(). qkv [batch, length, 3, heads, dim] holds query, key and
// value of each position, for example merged_linear(x, {query, key, value}).reshape({batch, length, 3, heads,
// dim}); result [batch, length, heads, dim]. Both are layouts of linear layers, so nothing is copied. The
// gradient of qkv is one tensor, too.
[[nodiscard]] Tensor packed_attention(const Tensor& qkv, const AttentionOptions& options = {});

// Pairing of the elements of a head.
enum class RotaryPairs : std::uint8_t {
    halves,     // i and i + dim / 2: GPT-NeoX, and the files of Llama in Hugging Face's format
    neighbours  // 2 i and 2 i + 1: the paper, GPT-J, and Meta's own files of Llama
};
// Rotary position embedding (RoPE; Su et al., arXiv 2104.09864, section 3.2.2): each pair (a, b) of elements
// of a head becomes (a cos - b sin, b cos + a sin). x [batch, heads, length, dim], dim even; cos and sin of
// the angles [length, dim / 2] or, if they differ, [batch, length, dim / 2], usually float32 also where x is
// in 16 bit: the result has x's shape and dtype, and is rounded once. cos and sin are constants: they get no
// gradient.
[[nodiscard]] Tensor rotary_embedding(const Tensor& x, const Tensor& cos, const Tensor& sin,
                                      RotaryPairs pairs = RotaryPairs::halves);

}  // namespace mezzo

#pragma GCC visibility pop
