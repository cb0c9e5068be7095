// The language model Llama (Touvron et al., arXiv 2302.13971 and 2307.09288): RMSNorm, rotary position
// embedding, SwiGLU and grouped-query attention. Fields are named so that state_dict() has the names of
// Hugging Face's LlamaForCausalLM.
//
//   nn::Llama llama(io::load_llama_config("llama/config.json"));
//   io::load_weights(llama, io::load_state_dict_file("llama/model.safetensors"),
//                    {.rename = io::llama_name});
//   y = llama(ids);  // [batch, length, vocab_size]
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "mezzo/models/causal_lm.h"
#include "mezzo/models/gpt_config.h"
#include "mezzo/nn.h"

#pragma GCC visibility push(default)

namespace mezzo::nn {

struct [[gnu::visibility("hidden")]] CausalPlaces;  // src/models/causal_parts.h

// Self-attention. The first three weights are contiguous in memory, so that all projections are one product
// (merged_linear()). rotary_embedding() rotates queries and keys with RotaryPairs::halves, as Hugging Face's
// files need; Meta's own files have the rows of q_proj and k_proj in another order.
class LlamaAttention : public Module {
public:
    explicit LlamaAttention(const LlamaConfig& config);
    // x [batch, length, hidden_size] of layer `layer` -> the same shape.
    [[nodiscard]] Tensor operator()(const Tensor& x, const CausalPlaces& places, std::size_t layer) const;

    Linear q_proj, k_proj, v_proj, o_proj;
    std::int64_t heads, key_value_heads;
    MEZZO_MODULE(LlamaAttention, q_proj, k_proj, v_proj, o_proj)
};

// Computes down_proj(silu(gate_proj(x)) * up_proj(x)). The first two weights are contiguous in memory.
class LlamaMlp : public Module {
public:
    explicit LlamaMlp(const LlamaConfig& config);
    [[nodiscard]] Tensor operator()(const Tensor& x) const;

    Linear gate_proj, up_proj, down_proj;
    MEZZO_MODULE(LlamaMlp, gate_proj, up_proj, down_proj)
};

// x = x + self_attn(input_layernorm(x)), x + mlp(post_attention_layernorm(x)).
class LlamaBlock : public Module {
public:
    explicit LlamaBlock(const LlamaConfig& config);
    [[nodiscard]] Tensor operator()(const Tensor& x, const CausalPlaces& places, std::size_t layer) const;

    LlamaAttention self_attn;
    LlamaMlp mlp;
    RMSNorm input_layernorm, post_attention_layernorm;
    MEZZO_MODULE(LlamaBlock, self_attn, mlp, input_layernorm, post_attention_layernorm)
};

class LlamaModel : public Module {
public:
    explicit LlamaModel(const LlamaConfig& config);
    [[nodiscard]] Tensor operator()(const Tensor& ids, const CausalInputs& inputs) const;

    Embedding embed_tokens;  // [vocab_size, hidden_size]
    std::vector<LlamaBlock> layers;
    RMSNorm norm;
    std::int64_t max_length, head_dim;
    double rope_theta;
    bool checkpoint_layers = false;  // as of GptModel
    MEZZO_MODULE(LlamaModel, embed_tokens, layers, norm)
};

// Llama with its output layer. Matrices start as N(0, initializer_range), RMSNorms as the identity. Position
// p rotates pair i of a head by the angle p rope_theta^(-2 i / head_dim), computed in float64. The
// constructor throws Error(value) for sizes that do not fit together.
class Llama : public CausalLm {
public:
    explicit Llama(const LlamaConfig& config);
    [[nodiscard]] Tensor hidden(const Tensor& ids, const CausalInputs& inputs = {}) const override;
    [[nodiscard]] Tensor logits(const Tensor& hidden) const override;
    [[nodiscard]] std::int64_t max_length() const override { return config.max_position_embeddings; }
    [[nodiscard]] std::int64_t vocab_size() const override { return config.vocab_size; }
    [[nodiscard]] Device device() const override { return model.embed_tokens.weight.device(); }
    const char* type_name() const override { return "Llama"; }
    void visit_fields(FieldVisitor& visitor) override;
    bool is_linear_weight(std::string_view path) const override {
        return config.tie_word_embeddings && path == "model.embed_tokens.weight";
    }

    LlamaConfig config;
    LlamaModel model;
    Linear lm_head;  // [vocab_size, hidden_size], no bias; used and listed only without tie_word_embeddings
};

}  // namespace mezzo::nn

#pragma GCC visibility pop
