// Configuration of a BERT model, with the names and defaults of Hugging Face's config.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "mezzo/cpp20.h"

#pragma GCC visibility push(default)

namespace mezzo::nn {

// Defaults are those of bert-base-uncased (Devlin et al., arXiv 1810.04805).
struct BertConfig {
    std::int64_t vocab_size = 30522;
    std::int64_t hidden_size = 768;  // a multiple of num_attention_heads
    std::int64_t num_hidden_layers = 12;
    std::int64_t num_attention_heads = 12;
    std::int64_t intermediate_size = 3072;
    // "gelu" (by erf), "gelu_new" and "gelu_pytorch_tanh" (both the tanh approximation), "relu", "silu"
    std::string hidden_act = "gelu";
    double hidden_dropout_prob = 0.1;
    double attention_probs_dropout_prob = 0.1;
    std::int64_t max_position_embeddings = 512;
    std::int64_t type_vocab_size = 2;
    double initializer_range = 0.02;  // standard deviation of fresh weights
    double layer_norm_eps = 1e-12;
    std::int64_t pad_token_id = 0;
    std::optional<double> classifier_dropout = {};  // none: hidden_dropout_prob
    std::int64_t num_labels = 2;

    friend bool operator==(const BertConfig&, const BertConfig&) = default;
};

}  // namespace mezzo::nn

#pragma GCC visibility pop
