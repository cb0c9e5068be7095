// The Transformer decoder, and encoder and decoder together.
#include "mezzo/autograd.h"
#include "mezzo/init.h"
#include "mezzo/module_scope.h"
#include "mezzo/transformer.h"
#include "nn/sublayers.h"

namespace mezzo::nn {

TransformerDecoderLayer::TransformerDecoderLayer(std::int64_t d_model, std::int64_t nhead,
                                                 const TransformerDecoderLayerOptions& options)
    : self_attn(d_model, nhead, {.dropout = options.dropout}),
      multihead_attn(d_model, nhead, {.dropout = options.dropout}),
      linear1(d_model, options.dim_feedforward),
      linear2(options.dim_feedforward, d_model),
      norm1(d_model, {.eps = options.layer_norm_eps}),
      norm2(d_model, {.eps = options.layer_norm_eps}),
      norm3(d_model, {.eps = options.layer_norm_eps}),
      dropout_p(options.dropout),
      activation(options.activation),
      norm_first(options.norm_first) {}

Tensor TransformerDecoderLayer::run(const Tensor& tgt, const Tensor& memory,
                                    const DecoderMasks& masks) const {
    const Sublayers sub{.dropout_p = dropout_p, .training = training()};
    if (norm_first) {
        const Tensor n = norm1(tgt);
        const Tensor x = tgt + sub.dropped(self_attn(n, n, n, masks.tgt));
        const Tensor y = x + sub.dropped(multihead_attn(norm2(x), memory, memory, masks.memory));
        return y + sub.dropped(sub.feed_forward(linear1, linear2, activation, norm3(y)));
    }
    const Tensor x = sub.attention_and_norm(self_attn, norm1, tgt, tgt, masks.tgt);
    const Tensor y = sub.attention_and_norm(multihead_attn, norm2, x, memory, masks.memory);
    return sub.feed_forward_and_norm(linear1, linear2, activation, norm3, y);
}

Tensor TransformerDecoderLayer::operator()(const Tensor& tgt, const Tensor& memory,
                                           const DecoderMasks& masks) const {
    const ModuleScope here(*this);
    return with_hooks([&](const Tensor& x, const Tensor& m) { return run(x, m, masks); }, tgt, memory);
}

TransformerDecoder::TransformerDecoder(std::int64_t d_model, std::int64_t nhead,
                                       const TransformerDecoderOptions& options)
    : norm(d_model, {.eps = options.layer.layer_norm_eps}),
      final_norm(options.final_norm),
      checkpoint_layers(options.checkpoint_layers) {
    check(options.num_layers >= 0, ErrorKind::value, "TransformerDecoder: num_layers is ", options.num_layers,
          "; it must not be negative");
    for (std::int64_t i = 0; i < options.num_layers; ++i) layers.emplace_back(d_model, nhead, options.layer);
}

void TransformerDecoder::visit_fields(FieldVisitor& visitor) {
    detail::visit_fields(visitor, "layers", layers);
    if (final_norm) visitor.module("norm", norm);
}

Tensor TransformerDecoder::operator()(const Tensor& tgt, const Tensor& memory,
                                      const DecoderMasks& masks) const {
    const ModuleScope here(*this);
    const auto run = [&](const Tensor& x, const Tensor& m) {
        const auto call = [masks](const TransformerDecoderLayer& layer, const Tensors& in) {
            return layer(in[0], in[1], masks);
        };
        const Tensor y = through_layers(layers, checkpoint_layers, {x, m}, call);
        return final_norm ? norm(y) : y;
    };
    return with_hooks(run, tgt, memory);
}

Transformer::Transformer(std::int64_t d_model, std::int64_t nhead, const TransformerOptions& options)
    : encoder(d_model, nhead,
              {.num_layers = options.num_encoder_layers,
               .layer = options.layer,
               .final_norm = true,
               .checkpoint_layers = options.checkpoint_layers}),
      decoder(d_model, nhead,
              {.num_layers = options.num_decoder_layers,
               .layer = options.layer,
               .final_norm = true,
               .checkpoint_layers = options.checkpoint_layers}) {
    for (const Tensor& parameter : parameters())
        if (parameter.dim() > 1) init::xavier_uniform_(parameter);
}

Tensor Transformer::operator()(const Tensor& src, const Tensor& tgt, const TransformerMasks& masks) const {
    const ModuleScope here(*this);
    return with_hooks(
        [&](const Tensor& source, const Tensor& target) {
            return decoder(target, encoder(source, masks.src), {.tgt = masks.tgt, .memory = masks.memory});
        },
        src, tgt);
}

}  // namespace mezzo::nn
