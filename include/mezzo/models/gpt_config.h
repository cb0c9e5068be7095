// Configurations of GPT-2 and Llama models, with the names and defaults of Hugging Face's config.json.
//
//   const nn::GptConfig small{.n_positions = 256, .n_embd = 384, .n_layer = 6, .n_head = 6};
//   const nn::Gpt gpt(small);
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "mezzo/cpp20.h"

#pragma GCC visibility push(default)

namespace mezzo::nn {

// Defaults are those of gpt2 (Radford et al., "Language Models are Unsupervised Multitask Learners", 2019).
struct GptConfig {
    std::int64_t vocab_size = 50257;
    std::int64_t n_positions = 1024;  // most tokens of a text
    std::int64_t n_embd = 768;        // a multiple of n_head
    std::int64_t n_layer = 12;
    std::int64_t n_head = 12;
    std::optional<std::int64_t> n_inner = {};  // of the feed-forward part; none: 4 n_embd
    // "gelu_new" and "gelu_pytorch_tanh" (both the tanh approximation), "gelu" (by erf), "relu"
    std::string activation_function = "gelu_new";
    double resid_pdrop = 0.1, embd_pdrop = 0.1, attn_pdrop = 0.1;
    double layer_norm_epsilon = 1e-5;
    double initializer_range = 0.02;  // standard deviation of fresh weights
    bool tie_word_embeddings = true;  // the output's matrix is the token embedding

    friend bool operator==(const GptConfig&, const GptConfig&) = default;
};

// Defaults are those of LlamaConfig, which are the sizes of LLaMA 7B (Touvron et al., arXiv 2302.13971).
struct LlamaConfig {
    std::int64_t vocab_size = 32000;
    std::int64_t max_position_embeddings = 2048;  // most tokens of a text
    std::int64_t hidden_size = 4096;
    std::int64_t intermediate_size = 11008;
    std::int64_t num_hidden_layers = 32;
    std::int64_t num_attention_heads = 32;                 // a multiple of num_key_value_heads
    std::optional<std::int64_t> num_key_value_heads = {};  // none: num_attention_heads
    std::optional<std::int64_t> head_dim = {};             // even; none: hidden_size / num_attention_heads
    double rms_norm_eps = 1e-6;
    double rope_theta = 10000;
    double initializer_range = 0.02;
    bool tie_word_embeddings = false;

    friend bool operator==(const LlamaConfig&, const LlamaConfig&) = default;
};

}  // namespace mezzo::nn

#pragma GCC visibility pop
