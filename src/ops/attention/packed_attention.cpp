// packed_attention: attention with query, key and value, and also their gradients, in one tensor.
#include "kernels/packed_attention.h"

#include "mezzo/attention_ops.h"
#include "ops/attention/attention.h"

namespace mezzo {

namespace {

// Query, key and value of [batch, length, 3, heads, dim] as [batch, length, heads, dim].
Tensor part(const Tensor& qkv, int i) { return qkv.select(2, i); }

const Op<kernels::PackedAttentionGrad> packed_attention_grad_op{
    {.strided = true, .mixed = true}, nullptr, [](In in, const kernels::PackedAttentionGrad& at) -> Tensors {
        const Tensor all[] = {in[0], part(in[1], 0), part(in[1], 1), part(in[1], 2),
                              in[2], in[3],          in[4],          in[5]};
        return {stack(attention_grad_decomposition(all, {.forward = at.forward}), 2)};
    }};

Tensors packed_attention_vjp(const Node& c, const kernels::PackedAttention& at, const Tensors& g) {
    const Tensor given[] = {with_unit_stride(g[0]), c.in(0), c.out(), c.out(1), c.out(2), c.in(1)};
    return call(packed_attention_grad_op, given, {.forward = at.attention},
                std::span<const Shape>(&c.inputs[0].shape, 1));
}

const Op<kernels::PackedAttention> packed_attention_op{
    {.cast = CastPolicy::low,
     .saves = save_inputs | save_outputs,
     .strided = true,
     .mixed = true,
     .first_float32_result = 1},
    packed_attention_vjp,
    [](In in, const kernels::PackedAttention& at) -> Tensors {
        const Tensor all[] = {part(in[0], 0), part(in[0], 1), part(in[0], 2), in[1]};
        return attention_decomposition(all, at.attention);
    }};

}  // namespace

Tensor packed_attention(const Tensor& qkv, const AttentionOptions& options) {
    const char* op = "packed_attention";
    check_floating(op, qkv, "qkv");
    check(qkv.dim() == 5 && qkv.size(2) == 3, ErrorKind::shape, op,
          ": qkv must be [batch, length, 3, heads, dim], not ", qkv.shape());
    const std::int64_t batch = qkv.size(0), length = qkv.size(1), heads = qkv.size(3), dim = qkv.size(4);
    const Shape scores{batch, heads, length, length};
    check_attention_options(op, scores, options);
    if (options.mask.defined() && options.mask.dtype() != boolean) {
        const auto of_heads = [&](int i) { return part(qkv, i).permute({0, 2, 1, 3}); };
        return scaled_dot_product_attention(of_heads(0), of_heads(1), of_heads(2), options)
            .permute({0, 2, 1, 3});
    }
    const Tensor given[] = {with_unit_stride(qkv),
                            options.mask.defined() ? options.mask.expand(scores) : Tensor()};
    const Shape rows{batch, heads, length}, shapes[] = {{batch, length, heads, dim}, rows, rows};
    return with_attention_attributes(options, scores, dim, [&](const auto& at) {
        return call(packed_attention_op, given, {.attention = at},
                    std::span(shapes, recording(qkv) ? 3 : 1))[0];
    });
}

}  // namespace mezzo
