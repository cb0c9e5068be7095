// Attention on [batch, length, heads, dim], the layout in which linear layers leave the heads.
#pragma once

#include "kernels/kernel.h"
#include "mezzo/device.h"

namespace mezzo::kernels {

// q [batch, query, heads, dim], k, v [batch, key, heads, dim] (any strides but 1 in dim), mask (boolean view of
// [batch, heads, query, key], true: may look) or undefined -> y contiguous like q and, if there are more
// results, [batch, heads, query] each, float32 (float64 for float64): the largest score q k^T of each query,
// not scaled, -inf where there is nothing to look at, and the sum of e^(scale (score - largest)). Their
// log-sum-exp would round the sum away where scores are large.
struct ScaledDotProductAttention {
    static constexpr const char* name = "scaled_dot_product_attention";
    double scale = 1;      // of the scores
    bool causal = false;   // query i looks at keys 0 ... i only
    double dropout_p = 0;  // of the weights
    // Of that dropout: element ((b heads + h) query + i) key + j (kernels/random.h).
    RandomState stream = {};
};
// g, q, k, v, y, largest, sum, mask -> gradients of q, k, v.
struct ScaledDotProductAttentionGrad {
    static constexpr const char* name = "scaled_dot_product_attention_grad";
    ScaledDotProductAttention forward = {};  // what the op was called with
};

}  // namespace mezzo::kernels
