// Configuration of a BERT model, with the names and defaults of Hugging Face's config.json.
//
//   nn::BertConfig config = io::load_bert_config("bert/config.json");
//   config.num_labels = 3;
//   nn::BertForSequenceClassification bert(config);
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

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

namespace mezzo::io {

// Reads a BERT config.json. Missing names get their defaults, unknown ones are ignored. Throws Error(io) for
// text that is not JSON, and Error(value) for values of a wrong type or range, and for models that BertConfig
// does not describe (relative positions, another model_type).
[[nodiscard]] nn::BertConfig parse_bert_config(std::string_view text);
[[nodiscard]] nn::BertConfig load_bert_config(const std::string& path);
// The text of a config.json that parse_bert_config and Python's transformers read. Throws Error(value) for a
// config that parse_bert_config would refuse.
[[nodiscard]] std::string to_json(const nn::BertConfig& config);

// The name of a Hugging Face BERT weight in mezzo's modules. The encoder's names (embeddings.…, encoder.…,
// pooler.…, with or without "bert.") get `prefix`, the path of the encoder in the model; names that end in
// LayerNorm.gamma and LayerNorm.beta end in weight and bias; embeddings.position_ids gives an empty name;
// others (classifier.…, cls.…) stay: {.rename = [](const auto& name) { return io::bert_name(name); }}.
[[nodiscard]] std::string bert_name(std::string_view name, std::string_view prefix = "");

}  // namespace mezzo::io

#pragma GCC visibility pop
