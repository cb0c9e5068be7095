// The GPT-2 model.
#include "mezzo/models/gpt.h"

#include <cmath>

#include "mezzo/attention_ops.h"
#include "mezzo/module_scope.h"
#include "models/causal_parts.h"
#include "nn/heads.h"
#include "nn/normal_weights.h"

namespace mezzo::nn {

namespace {

LinearActivation activation_of(const GptConfig& config) {
    const std::string& name = config.activation_function;
    if (name == "gelu_new" || name == "gelu_pytorch_tanh") return LinearActivation::gelu_tanh;
    if (name == "gelu") return LinearActivation::gelu;
    check(name == "relu", ErrorKind::value, "GptConfig: activation_function is \"", name,
          "\"; known are gelu, gelu_new, gelu_pytorch_tanh and relu");
    return LinearActivation::relu;
}

std::int64_t inner_size(const GptConfig& c) { return c.n_inner.value_or(4 * c.n_embd); }

LayerNorm norm_of(const GptConfig& c) { return LayerNorm(c.n_embd, {.eps = c.layer_norm_epsilon}); }

}  // namespace

Tensor GptLinear::as_saved(std::string_view field, const Tensor& tensor) const {
    return field.starts_with("weight") ? tensor.t() : tensor;  // weight_scale, too
}

GptAttention::GptAttention(const GptConfig& c)
    : c_attn(c.n_embd, 3 * c.n_embd), c_proj(c.n_embd, c.n_embd), heads(c.n_head), dropout_p(c.attn_pdrop) {}

Tensor GptAttention::operator()(const Tensor& x, const CausalPlaces& places, std::size_t layer) const {
    const ModuleScope here(*this);
    const AttentionOptions options{
        .mask = places.mask, .causal = true, .dropout_p = dropout_p, .training = training()};
    const Tensor qkv = c_attn(x);
    if (places.cache) {
        const Tensors parts = split_heads(qkv, {heads, heads, heads});
        return c_proj(causal_attention(parts[0], parts[1], parts[2], places, layer, options));
    }
    const Shape packed{x.size(0), x.size(1), 3, heads, x.size(2) / heads};
    return c_proj(packed_attention(qkv.reshape(packed), options).reshape(x.shape()));
}

GptMlp::GptMlp(const GptConfig& c)
    : c_fc(c.n_embd, inner_size(c)), c_proj(inner_size(c), c.n_embd), activation(activation_of(c)) {}

Tensor GptMlp::operator()(const Tensor& x) const {
    const ModuleScope here(*this);
    return with_hooks(
        [this](const Tensor& in) { return c_proj(linear(in, c_fc.weight, c_fc.bias, activation)); }, x);
}

GptBlock::GptBlock(const GptConfig& c)
    : ln_1(norm_of(c)), attn(c), ln_2(norm_of(c)), mlp(c), dropout_p(c.resid_pdrop) {}

Tensor GptBlock::operator()(const Tensor& x, const CausalPlaces& places, std::size_t layer) const {
    const ModuleScope here(*this);
    return with_hooks(
        [&](const Tensor& in) {
            const Tensor y = in + dropout(attn(ln_1(in), places, layer), dropout_p, training());
            return y + dropout(mlp(ln_2(y)), dropout_p, training());
        },
        x);
}

GptModel::GptModel(const GptConfig& c)
    : wte(c.vocab_size, c.n_embd), wpe(c.n_positions, c.n_embd), ln_f(norm_of(c)), dropout_p(c.embd_pdrop) {
    for (std::int64_t i = 0; i < c.n_layer; ++i) h.emplace_back(c);
}

Tensor GptModel::operator()(const Tensor& ids, const CausalInputs& inputs) const {
    const ModuleScope here(*this);
    const CausalPlaces places = places_of("Gpt", ids, inputs, wpe.weight.size(0));
    const Tensor positions = places.positions.defined()
                                 ? wpe(places.positions)
                                 : wpe.weight.slice(0, places.first, places.first + ids.size(1));
    const Tensor x = dropout(wte(ids) + positions, dropout_p, training());
    const Tensor y = ln_f(through_layers(h, x, places, checkpoint_layers));
    if (inputs.cache) inputs.cache->end();
    return y;
}

Gpt::Gpt(const GptConfig& c)
    : config(checked(c)),
      transformer(c),
      lm_head(c.tie_word_embeddings ? 0 : c.n_embd, c.tie_word_embeddings ? 0 : c.vocab_size,
              {.bias = false}) {
    normal_weights(*this, c.initializer_range);
    transformer.wte.set_fp8(false), lm_head.set_fp8(false);  // the output layer
    const NoGrad plain;
    const double residual = c.initializer_range / std::sqrt(2 * double(c.n_layer));
    for (const GptBlock& block : transformer.h) {
        block.attn.c_proj.weight.normal_(0, residual);
        block.mlp.c_proj.weight.normal_(0, residual);
    }
}

Tensor Gpt::hidden(const Tensor& ids, const CausalInputs& inputs) const {
    const ModuleScope here(*this);
    return transformer(ids, inputs);
}

Tensor Gpt::logits(const Tensor& hidden) const {
    const ModuleScope here(*this);
    return linear(hidden, config.tie_word_embeddings ? transformer.wte.weight : lm_head.weight);
}

void Gpt::visit_fields(FieldVisitor& visitor) {
    visitor.module("transformer", transformer);
    if (!config.tie_word_embeddings) visitor.module("lm_head", lm_head);
}

}  // namespace mezzo::nn
