// The Llama model.
#include "mezzo/models/llama.h"

#include <cmath>

#include "mezzo/attention_ops.h"
#include "mezzo/module_scope.h"
#include "mezzo/pointwise_ops.h"
#include "models/causal_parts.h"
#include "nn/heads.h"
#include "nn/normal_weights.h"
#include "nn/replace.h"

namespace mezzo::nn {

namespace {

constexpr LinearOptions no_bias{.bias = false};

RMSNorm norm_of(const LlamaConfig& c) { return RMSNorm(c.hidden_size, {.eps = c.rms_norm_eps}); }

// cos and sin of the angles of all positions: [length, dim / 2], or [batch, length, dim / 2] with padding.
void set_angles(CausalPlaces& places, std::int64_t length, std::int64_t dim, double theta,
                const Tensor& weight) {
    const NoGrad plain;
    const TensorOptions reals{.dtype = float64, .device = weight.device()};
    const Tensor at = places.positions.defined() ? places.positions.to(float64)
                                                 : arange(places.first, places.first + length, reals);
    const Tensor rates = exp(arange(dim / 2, reals) * (-2 * std::log(theta) / double(dim)));
    const Tensor angles = at.unsqueeze(-1) * rates;
    const Dtype dtype = weight.dtype() == float64 ? float64 : float32;
    places.cos = cos(angles).to(dtype);
    places.sin = sin(angles).to(dtype);
}

}  // namespace

LlamaAttention::LlamaAttention(const LlamaConfig& c)
    : q_proj(c.hidden_size, c.num_attention_heads * nn::head_dim(c), no_bias),
      k_proj(c.hidden_size, nn::key_value_heads(c) * nn::head_dim(c), no_bias),
      v_proj(c.hidden_size, nn::key_value_heads(c) * nn::head_dim(c), no_bias),
      o_proj(c.num_attention_heads * nn::head_dim(c), c.hidden_size, no_bias),
      heads(c.num_attention_heads),
      key_value_heads(nn::key_value_heads(c)) {
    place_side_by_side({q_proj.weight, k_proj.weight, v_proj.weight});
}

Tensor LlamaAttention::operator()(const Tensor& x, const CausalPlaces& places, std::size_t layer) const {
    const ModuleScope here(*this);
    const Tensors parts = split_heads(merged_linear(x, {q_proj.weight, k_proj.weight, v_proj.weight}),
                                      {heads, key_value_heads, key_value_heads});
    const Tensor q = rotary_embedding(parts[0], places.cos, places.sin),
                 k = rotary_embedding(parts[1], places.cos, places.sin);
    return o_proj(causal_attention(q, k, parts[2], places, layer, {}));
}

LlamaMlp::LlamaMlp(const LlamaConfig& c)
    : gate_proj(c.hidden_size, c.intermediate_size, no_bias),
      up_proj(c.hidden_size, c.intermediate_size, no_bias),
      down_proj(c.intermediate_size, c.hidden_size, no_bias) {
    place_side_by_side({gate_proj.weight, up_proj.weight});
}

Tensor LlamaMlp::operator()(const Tensor& x) const {
    const ModuleScope here(*this);
    return with_hooks(
        [this](const Tensor& in) {
            return down_proj(swiglu(merged_linear(in, {gate_proj.weight, up_proj.weight})));
        },
        x);
}

LlamaBlock::LlamaBlock(const LlamaConfig& c)
    : self_attn(c), mlp(c), input_layernorm(norm_of(c)), post_attention_layernorm(norm_of(c)) {}

Tensor LlamaBlock::operator()(const Tensor& x, const CausalPlaces& places, std::size_t layer) const {
    const ModuleScope here(*this);
    return with_hooks(
        [&](const Tensor& in) {
            const Tensor y = in + self_attn(input_layernorm(in), places, layer);
            return y + mlp(post_attention_layernorm(y));
        },
        x);
}

LlamaModel::LlamaModel(const LlamaConfig& c)
    : embed_tokens(c.vocab_size, c.hidden_size),
      norm(norm_of(c)),
      max_length(c.max_position_embeddings),
      head_dim(nn::head_dim(c)),
      rope_theta(c.rope_theta) {
    for (std::int64_t i = 0; i < c.num_hidden_layers; ++i) layers.emplace_back(c);
}

Tensor LlamaModel::operator()(const Tensor& ids, const CausalInputs& inputs) const {
    const ModuleScope here(*this);
    CausalPlaces places = places_of("Llama", ids, inputs, max_length);
    set_angles(places, ids.size(1), head_dim, rope_theta, norm.weight);
    const Tensor y = norm(through_layers(layers, embed_tokens(ids), places, checkpoint_layers));
    if (inputs.cache) inputs.cache->end();
    return y;
}

Llama::Llama(const LlamaConfig& c)
    : config(checked(c)),
      model(c),
      lm_head(c.tie_word_embeddings ? 0 : c.hidden_size, c.tie_word_embeddings ? 0 : c.vocab_size, no_bias) {
    normal_weights(*this, c.initializer_range);
    model.embed_tokens.set_fp8(false), lm_head.set_fp8(false);  // the output layer
}

Tensor Llama::hidden(const Tensor& ids, const CausalInputs& inputs) const {
    const ModuleScope here(*this);
    return model(ids, inputs);
}

Tensor Llama::logits(const Tensor& hidden) const {
    const ModuleScope here(*this);
    return linear(hidden, config.tie_word_embeddings ? model.embed_tokens.weight : lm_head.weight);
}

void Llama::visit_fields(FieldVisitor& visitor) {
    visitor.module("model", model);
    if (!config.tie_word_embeddings) visitor.module("lm_head", lm_head);
}

}  // namespace mezzo::nn
