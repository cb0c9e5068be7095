// The Transformer encoder, and the parts that its layers share with the decoder's.
#include "mezzo/transformer.h"

#include "mezzo/autograd.h"
#include "mezzo/module_scope.h"
#include "nn/sublayers.h"

namespace mezzo::nn {

namespace {

Tensor activated(LinearActivation activation, const Tensor& x) {
    switch (activation) {
        case LinearActivation::relu:
            return relu(x);
        case LinearActivation::gelu:
            return gelu(x);
        case LinearActivation::gelu_tanh:
            return gelu_tanh(x);
        case LinearActivation::none:
            break;
    }
    return x;
}

}  // namespace

Tensor Sublayers::dropped(const Tensor& x) const { return dropout(x, dropout_p, training); }

Tensor Sublayers::inner(const Linear& linear1, LinearActivation activation, const Tensor& x) const {
    if (linear1.has_hooks()) return dropped(activated(activation, linear1(x)));
    return dropped(linear(x, linear1.weight, linear1.bias, activation));
}

Tensor Sublayers::feed_forward(const Linear& linear1, const Linear& linear2, LinearActivation activation,
                               const Tensor& x) const {
    return linear2(inner(linear1, activation, x));
}

// norm(residual + dropped(linear2(x))), in one op behind the product unless a layer has hooks.
Tensor Sublayers::linear_and_norm(const Linear& last, const LayerNorm& norm, const Tensor& x,
                                  const Tensor& residual) const {
    if (last.has_hooks() || norm.has_hooks()) return norm(residual + dropped(last(x)));
    return dropout_add_layer_norm(linear(x, last.weight), last.bias, residual, norm.weight, norm.bias,
                                  {.p = dropout_p, .eps = norm.eps, .training = training});
}

Tensor Sublayers::attention_and_norm(const MultiheadAttention& attention, const LayerNorm& norm,
                                     const Tensor& x, const Tensor& memory,
                                     const AttentionMasks& masks) const {
    if (attention.has_hooks()) return norm(x + dropped(attention(x, memory, memory, masks)));
    return linear_and_norm(attention.out_proj, norm, attention.joined_heads(x, memory, memory, masks), x);
}

Tensor Sublayers::feed_forward_and_norm(const Linear& linear1, const Linear& linear2,
                                        LinearActivation activation, const LayerNorm& norm,
                                        const Tensor& x) const {
    return linear_and_norm(linear2, norm, inner(linear1, activation, x), x);
}

TransformerEncoderLayer::TransformerEncoderLayer(std::int64_t d_model, std::int64_t nhead,
                                                 const TransformerEncoderLayerOptions& options)
    : self_attn(d_model, nhead, {.dropout = options.dropout}),
      linear1(d_model, options.dim_feedforward),
      linear2(options.dim_feedforward, d_model),
      norm1(d_model, {.eps = options.layer_norm_eps}),
      norm2(d_model, {.eps = options.layer_norm_eps}),
      dropout_p(options.dropout),
      activation(options.activation),
      norm_first(options.norm_first) {}

Tensor TransformerEncoderLayer::run(const Tensor& x, const AttentionMasks& masks) const {
    const Sublayers sub{.dropout_p = dropout_p, .training = training()};
    if (norm_first) {
        const Tensor n = norm1(x);
        const Tensor y = x + sub.dropped(self_attn(n, n, n, masks));
        return y + sub.dropped(sub.feed_forward(linear1, linear2, activation, norm2(y)));
    }
    const Tensor y = sub.attention_and_norm(self_attn, norm1, x, x, masks);
    return sub.feed_forward_and_norm(linear1, linear2, activation, norm2, y);
}

Tensor TransformerEncoderLayer::operator()(const Tensor& input, const AttentionMasks& masks) const {
    const ModuleScope here(*this);
    return with_hooks([&](const Tensor& x) { return run(x, masks); }, input);
}

TransformerEncoder::TransformerEncoder(std::int64_t d_model, std::int64_t nhead,
                                       const TransformerEncoderOptions& options)
    : norm(d_model, {.eps = options.layer.layer_norm_eps}),
      final_norm(options.final_norm),
      checkpoint_layers(options.checkpoint_layers) {
    check(options.num_layers >= 0, ErrorKind::value, "TransformerEncoder: num_layers is ", options.num_layers,
          "; it must not be negative");
    for (std::int64_t i = 0; i < options.num_layers; ++i) layers.emplace_back(d_model, nhead, options.layer);
}

void TransformerEncoder::visit_fields(FieldVisitor& visitor) {
    detail::visit_fields(visitor, "layers", layers);
    if (final_norm) visitor.module("norm", norm);
}

Tensor TransformerEncoder::operator()(const Tensor& input, const AttentionMasks& masks) const {
    const ModuleScope here(*this);
    const auto run = [&](const Tensor& x) {
        const Tensor y = through_layers(
            layers, checkpoint_layers, {x},
            [masks](const TransformerEncoderLayer& layer, const Tensors& in) { return layer(in[0], masks); });
        return final_norm ? norm(y) : y;
    };
    return with_hooks(run, input);
}

}  // namespace mezzo::nn
