// BERT (Devlin et al., arXiv 1810.04805): the encoder, a classifier and a masked language model. Fields are
// named so that state_dict() has the names of Hugging Face's checkpoints, without "bert." for the encoder
// alone.
//
//   nn::BertForSequenceClassification bert(io::load_bert_config("bert/config.json"));
//   io::load_weights(bert, io::load_state_dict_file("bert/model.safetensors"),
//                    {.rename = [](const std::string& name) { return io::bert_name(name, "bert."); }});
//   loss = cross_entropy(bert(ids, {.attention_mask = mask}), labels);
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "mezzo/models/bert_config.h"
#include "mezzo/nn.h"

#pragma GCC visibility push(default)

namespace mezzo::nn {

// Inputs of Bert besides the token ids; each [batch, length].
struct BertInputs {
    Tensor attention_mask = {};  // boolean: true for real tokens, false for padding; undefined: all are real
    Tensor token_type_ids = {};  // int64 in [0, type_vocab_size); undefined: all 0
};

struct BertOutput {
    Tensor last_hidden_state;  // [batch, length, hidden_size]
    Tensor pooler_output;      // [batch, hidden_size]; undefined without pooler
};

// The parts of Bert, in the order of the names.

// LayerNorm(word + position + token type), then dropout.
class BertEmbeddings : public Module {
public:
    explicit BertEmbeddings(const BertConfig& config);
    // ids [batch, length] -> [batch, length, hidden_size].
    [[nodiscard]] Tensor operator()(const Tensor& ids, const Tensor& token_type_ids) const;

    Embedding word_embeddings;        // [vocab_size, hidden_size]
    Embedding position_embeddings;    // [max_position_embeddings, hidden_size]
    Embedding token_type_embeddings;  // [type_vocab_size, hidden_size]
    nn::LayerNorm LayerNorm;
    double dropout_p;
    MEZZO_MODULE(BertEmbeddings, word_embeddings, position_embeddings, token_type_embeddings, LayerNorm)
};

// Self-attention. The three weights are contiguous in memory, and so are the three biases, so that all
// projections are one product (merged_linear()). Any of them may be replaced.
class BertSelfAttention : public Module {
public:
    explicit BertSelfAttention(const BertConfig& config);
    // x [batch, length, hidden_size]; mask as for scaled_dot_product_attention, or undefined -> the results
    // of the heads, concatenated: [batch, length, hidden_size].
    [[nodiscard]] Tensor operator()(const Tensor& x, const Tensor& mask) const;

    Linear query, key, value;
    std::int64_t heads;
    double dropout_p;
    MEZZO_MODULE(BertSelfAttention, query, key, value)
};

// LayerNorm(residual + dropout(dense(x))): the end of both halves of a layer.
class BertResidual : public Module {
public:
    BertResidual(std::int64_t in_features, const BertConfig& config);
    [[nodiscard]] Tensor operator()(const Tensor& x, const Tensor& residual) const;

    Linear dense;
    nn::LayerNorm LayerNorm;
    double dropout_p;
    MEZZO_MODULE(BertResidual, dense, LayerNorm)
};

class BertAttention : public Module {
public:
    explicit BertAttention(const BertConfig& config) : self(config), output(config.hidden_size, config) {}
    [[nodiscard]] Tensor operator()(const Tensor& x, const Tensor& mask) const {
        return output(self(x, mask), x);
    }

    BertSelfAttention self;
    BertResidual output;
    MEZZO_MODULE(BertAttention, self, output)
};

enum class BertActivation : std::uint8_t { gelu, gelu_tanh, relu, silu };

// activation(dense(x)): one op, but for silu.
class BertDense : public Module {
public:
    BertDense(std::int64_t out_features, const BertConfig& config);
    [[nodiscard]] Tensor operator()(const Tensor& x) const;

    Linear dense;
    BertActivation activation;
    MEZZO_MODULE(BertDense, dense)
};

class BertLayer : public Module {
public:
    explicit BertLayer(const BertConfig& config);
    [[nodiscard]] Tensor operator()(const Tensor& x, const Tensor& mask) const;

    BertAttention attention;
    BertDense intermediate;
    BertResidual output;
    MEZZO_MODULE(BertLayer, attention, intermediate, output)
};

class BertEncoder : public Module {
public:
    explicit BertEncoder(const BertConfig& config);
    [[nodiscard]] Tensor operator()(const Tensor& x, const Tensor& mask) const;

    std::vector<BertLayer> layer;
    // Activation checkpointing: backward recomputes each layer's activations. Needs memory for one layer plus
    // one activation per layer, and about a third more time; no second derivatives. May be changed between
    // steps.
    bool checkpoint_layers = false;
    MEZZO_MODULE(BertEncoder, layer)
};

// tanh(dense(hidden state of the first token)).
class BertPooler : public Module {
public:
    // present = false: no parameters, and the result is undefined.
    BertPooler(const BertConfig& config, bool present);
    [[nodiscard]] Tensor operator()(const Tensor& hidden) const;
    const char* type_name() const override { return "BertPooler"; }
    void visit_fields(FieldVisitor& visitor) override;

    Linear dense;
    bool present;
};

struct BertOptions {
    bool pooler = true;
};

// The encoder. Weights start as N(0, initializer_range), biases as 0, LayerNorms as the identity, and the
// embedding of pad_token_id as 0. Throws Error(value) for sizes that do not fit together.
class Bert : public Module {
public:
    explicit Bert(const BertConfig& config, const BertOptions& options = {});
    // ids int64 [batch, length] in [0, vocab_size), with 0 < length <= max_position_embeddings. Throws
    // Error(shape) for inputs of other shapes, Error(dtype) for other dtypes, and Error(value) for another
    // length; for an id out of range, see embedding() in ops.h.
    [[nodiscard]] BertOutput operator()(const Tensor& ids, const BertInputs& inputs = {}) const;

    BertConfig config;
    BertEmbeddings embeddings;
    BertEncoder encoder;
    BertPooler pooler;
    MEZZO_MODULE(Bert, embeddings, encoder, pooler)
};

struct BertClassifierOptions {
    // false: the classifier reads the hidden state of the first token itself, and there is no pooler.
    bool pooler = true;
};

// classifier(dropout(pooled first token)): logits of texts or pairs of texts.
class BertForSequenceClassification : public Module {
public:
    explicit BertForSequenceClassification(const BertConfig& config,
                                           const BertClassifierOptions& options = {});
    // ids as for Bert -> [batch, num_labels].
    [[nodiscard]] Tensor operator()(const Tensor& ids, const BertInputs& inputs = {}) const;

    Bert bert;
    Linear classifier;  // [num_labels, hidden_size]
    double dropout_p;
    MEZZO_MODULE(BertForSequenceClassification, bert, classifier)
};

// LayerNorm(activation(dense(x))).
class BertPredictionTransform : public Module {
public:
    explicit BertPredictionTransform(const BertConfig& config);
    [[nodiscard]] Tensor operator()(const Tensor& x) const;

    Linear dense;
    nn::LayerNorm LayerNorm;
    BertActivation activation;
    MEZZO_MODULE(BertPredictionTransform, dense, LayerNorm)
};

class BertPredictions : public Module {
public:
    explicit BertPredictions(const BertConfig& config);
    // x [..., hidden_size], the word embeddings -> logits [..., vocab_size].
    [[nodiscard]] Tensor operator()(const Tensor& x, const Tensor& word_embeddings) const;

    Parameter bias;  // [vocab_size]
    BertPredictionTransform transform;
    MEZZO_MODULE(BertPredictions, bias, transform)
};

class BertPredictionHead : public Module {
public:
    explicit BertPredictionHead(const BertConfig& config) : predictions(config) {}

    BertPredictions predictions;
    MEZZO_MODULE(BertPredictionHead, predictions)
};

// The tokens to predict, out of batch * length.
struct MaskedTokens {
    Tensor positions;  // int64 [n]: row * length + column
    Tensor labels;     // int64 [n]: the correct ids
};
// The positions at which labels, int64 [batch, length], differ from ignore_index. Reads labels on the host,
// which waits for a device: call it when the batch is made. Throws Error(dtype) unless labels are int64, and
// Error(value) if there is nothing to predict.
[[nodiscard]] MaskedTokens masked_tokens(const Tensor& labels, std::int64_t ignore_index = -100);

// BERT with a head that predicts masked tokens. The decoder's matrix is the word embedding: one Parameter,
// whose gradient is the float32 sum of both uses, also under Autocast. There is no pooler.
class BertForMaskedLM : public Module {
public:
    explicit BertForMaskedLM(const BertConfig& config);
    // ids as for Bert -> logits [batch, length, vocab_size].
    [[nodiscard]] Tensor operator()(const Tensor& ids, const BertInputs& inputs = {}) const;
    // Logits [n, vocab_size] of the given positions alone (int64 [n], each row * length + column).
    [[nodiscard]] Tensor logits_at(const Tensor& ids, const Tensor& positions,
                                   const BertInputs& inputs = {}) const;
    // Mean cross-entropy over the masked tokens. Logits of other tokens are never computed.
    [[nodiscard]] Tensor loss(const Tensor& ids, const MaskedTokens& masked,
                              const BertInputs& inputs = {}) const;

    bool is_linear_weight(std::string_view path) const override {
        return path == "bert.embeddings.word_embeddings.weight";
    }

    Bert bert;
    BertPredictionHead cls;
    MEZZO_MODULE(BertForMaskedLM, bert, cls)
};

}  // namespace mezzo::nn

#pragma GCC visibility pop
