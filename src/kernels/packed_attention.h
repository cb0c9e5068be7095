// Self-attention on query, key and value packed in one tensor.
#pragma once

#include <array>
#include <cstdint>

#include "core/tensor_impl.h"
#include "kernels/attention.h"

namespace mezzo::kernels {

// qkv [batch, length, 3, heads, dim] (stride 1 in dim, any other strides) and mask -> the results of
// ScaledDotProductAttention.
struct PackedAttention {
    static constexpr const char* name = "packed_attention";
    ScaledDotProductAttention attention = {};
};
// g, qkv, y, largest, sum, mask -> the gradient of qkv.
struct PackedAttentionGrad {
    static constexpr const char* name = "packed_attention_grad";
    ScaledDotProductAttention forward = {};  // attributes of the forward op
};

// The three parts of a tensor of qkv's shape, as views [batch, length, heads, dim].
inline std::array<Tensor, 3> unpacked(const Tensor& x) {
    std::array<Tensor, 3> parts;
    const Shape& s = x->shape;
    const Strides& t = x->strides;
    for (std::int64_t i = 0; i < 3; ++i)
        parts[std::size_t(i)] = make_tensor(x->storage, {s[0], s[1], s[3], s[4]}, {t[0], t[1], t[3], t[4]},
                                            x->offset + i * t[2], x->dtype);
    return parts;
}

// Implements the kernels by a backend's kernels of the op with three tensors. The gradient's results may have
// any strides but in dim.
inline void run_packed_attention(In in, const PackedAttention& at, Out out,
                                 Kernel<ScaledDotProductAttention>& attention) {
    const auto [q, k, v] = unpacked(in[0]);
    const Tensor given[] = {q, k, v, in[1]};
    attention(In(given), at.attention, out);
}
inline void run_packed_attention_grad(In in, const PackedAttentionGrad& at, Out out,
                                      Kernel<ScaledDotProductAttentionGrad>& gradient) {
    const auto [q, k, v] = unpacked(in[1]);
    const Tensor given[] = {in[0], q, k, v, in[2], in[3], in[4], in[5]};
    const std::array<Tensor, 3> gradients = unpacked(out[0]);
    gradient(In(given), {.forward = at.forward}, Out(gradients));
}

}  // namespace mezzo::kernels
