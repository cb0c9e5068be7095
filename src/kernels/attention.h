// Attention on [batch, length, heads, dim], the layout in which linear layers leave the heads.
#pragma once

#include "kernels/kernel.h"
#include "mezzo/device.h"

namespace mezzo::kernels {

// q [batch, query, heads, dim], k, v [batch, key, heads, dim] (stride 1 in dim, any other strides), mask (a
// boolean view of [batch, heads, query, key], true where a query attends to a key) or undefined -> y,
// contiguous, of q's shape, and, if there are more results, two of [batch, heads, query] in float32 (float64
// for float64): `largest`, the largest score q k^T of each query, not scaled, -inf where it attends to no
// key; and `sum`, the sum of e^(scale (score - largest)). Their log-sum-exp would lose the sum by rounding
// where scores are large.
struct ScaledDotProductAttention {
    static constexpr const char* name = "scaled_dot_product_attention";
    double scale = 1;      // of the scores
    bool causal = false;   // query i attends to keys 0 ... i + key - query only: the last to all
    double dropout_p = 0;  // of the weights
    // Random numbers of that dropout: weight [b, h, i, j] is its element ((b heads + h) query + i) key + j
    // (kernels/random.h).
    RandomState stream = {};
};
// g, q, k, v, y, largest, sum, mask -> gradients of q, k, v, of any strides but 1 in dim.
struct ScaledDotProductAttentionGrad {
    static constexpr const char* name = "scaled_dot_product_attention_grad";
    ScaledDotProductAttention forward = {};  // attributes of the forward op
};

}  // namespace mezzo::kernels
