// The language model GPT-2 (Radford et al., 2019). Fields are named so that state_dict() has the names and
// shapes of Hugging Face's GPT2LMHeadModel.
//
//   const nn::Gpt gpt({.n_positions = 256, .n_embd = 384, .n_layer = 6, .n_head = 6});
//   loss = gpt.loss(ids[{ellipsis, Slice(0, -1)}], ids[{ellipsis, Slice(1)}]);
//   loss.backward();
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

// A Linear whose weight is stored as [in_features, out_features] in files, as in GPT-2's; in memory it is
// [out_features, in_features].
class GptLinear : public Linear {
public:
    using Linear::Linear;
    [[nodiscard]] Tensor as_saved(std::string_view field, const Tensor& tensor) const override;
    MEZZO_MODULE(GptLinear, weight, bias)
};

class GptAttention : public Module {
public:
    explicit GptAttention(const GptConfig& config);
    // x [batch, length, n_embd] of layer `layer` -> the same shape.
    [[nodiscard]] Tensor operator()(const Tensor& x, const CausalPlaces& places, std::size_t layer) const;

    GptLinear c_attn;  // query, key and value: n_embd -> 3 n_embd
    GptLinear c_proj;
    std::int64_t heads;
    double dropout_p;  // of the weights
    MEZZO_MODULE(GptAttention, c_attn, c_proj)
};

class GptMlp : public Module {
public:
    explicit GptMlp(const GptConfig& config);
    [[nodiscard]] Tensor operator()(const Tensor& x) const;

    GptLinear c_fc, c_proj;
    LinearActivation activation;
    MEZZO_MODULE(GptMlp, c_fc, c_proj)
};

// x = x + dropout(attn(ln_1(x))), x + dropout(mlp(ln_2(x))).
class GptBlock : public Module {
public:
    explicit GptBlock(const GptConfig& config);
    [[nodiscard]] Tensor operator()(const Tensor& x, const CausalPlaces& places, std::size_t layer) const;

    LayerNorm ln_1;
    GptAttention attn;
    LayerNorm ln_2;
    GptMlp mlp;
    double dropout_p;
    MEZZO_MODULE(GptBlock, ln_1, attn, ln_2, mlp)
};

class GptModel : public Module {
public:
    explicit GptModel(const GptConfig& config);
    [[nodiscard]] Tensor operator()(const Tensor& ids, const CausalInputs& inputs) const;

    Embedding wte;  // of tokens, [vocab_size, n_embd]
    Embedding wpe;  // of positions, [n_positions, n_embd]
    std::vector<GptBlock> h;
    LayerNorm ln_f;
    double dropout_p;
    // Activation checkpointing: backward recomputes each layer's activations. Needs memory for one layer plus
    // one activation per layer, and about a third more time; no second derivatives. May be changed between
    // steps.
    bool checkpoint_layers = false;
    MEZZO_MODULE(GptModel, wte, wpe, h, ln_f)
};

// GPT-2 with its output layer. Matrices start as N(0, initializer_range), those of both c_proj as N(0,
// initializer_range / sqrt(2 n_layer)), biases as 0, LayerNorms as the identity. With tie_word_embeddings the
// output's matrix is wte: one Parameter, whose gradient is the float32 sum of both uses, also under Autocast.
// The constructor throws Error(value) for sizes that do not fit together.
class Gpt : public CausalLm {
public:
    explicit Gpt(const GptConfig& config);
    [[nodiscard]] Tensor hidden(const Tensor& ids, const CausalInputs& inputs = {}) const override;
    [[nodiscard]] Tensor logits(const Tensor& hidden) const override;
    [[nodiscard]] std::int64_t max_length() const override { return config.n_positions; }
    [[nodiscard]] std::int64_t vocab_size() const override { return config.vocab_size; }
    [[nodiscard]] Device device() const override { return transformer.wte.weight.device(); }
    const char* type_name() const override { return "Gpt"; }
    void visit_fields(FieldVisitor& visitor) override;
    bool is_linear_weight(std::string_view path) const override {
        return config.tie_word_embeddings && path == "transformer.wte.weight";
    }

    GptConfig config;
    GptModel transformer;
    Linear lm_head;  // [vocab_size, n_embd], no bias; used and listed only without tie_word_embeddings
};

}  // namespace mezzo::nn

#pragma GCC visibility pop
