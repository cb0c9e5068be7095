// Self-attention without copies: several linear layers of one input as one product, and attention that reads
// query, key and value where that product has left them. Errors are those of ops.h.
#pragma once

#include "mezzo/ops.h"

namespace mezzo {

// linear(x, weight, bias) for each weight, side by side: x [..., in], weights [out_i, in], biases [out_i] or
// undefined, or no list of them; result [..., sum of out_i]. Dtypes and arithmetic are those of matmul(). It is one product
// where the weights lie one directly behind the other in memory, such as slices of one tensor or the
// projections of nn::BertSelfAttention, and a product for each otherwise. Throws Error(value) without a
// weight, or where the numbers of weights and biases differ.
[[nodiscard]] Tensor joint_linear(const Tensor& x, const Tensors& weights, const Tensors& biases = {});

// scaled_dot_product_attention() of a sequence with itself. qkv [batch, length, 3, heads, dim] holds query,
// key and value of each place, such as joint_linear(x, {query, key, value}).reshape({batch, length, 3, heads,
// dim}); result [batch, length, heads, dim]. Both are the layouts of linear layers, so nothing is copied. The
// gradient of qkv is one tensor as well.
[[nodiscard]] Tensor packed_attention(const Tensor& qkv, const AttentionOptions& options = {});

}  // namespace mezzo
