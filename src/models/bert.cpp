// BERT: the encoder, a classifier and a masked language model.
#include "mezzo/models/bert.h"

#include <cmath>

#include "mezzo/attention_ops.h"
#include "mezzo/autograd.h"
#include "mezzo/module_scope.h"
#include "nn/normal_weights.h"
#include "nn/replace.h"

namespace mezzo::nn {

namespace {

double classifier_dropout(const BertConfig& config) {
    return config.classifier_dropout.value_or(config.hidden_dropout_prob);
}

// The activation that hidden_act names. Throws Error(value) for an unknown name.
BertActivation activation_of(const BertConfig& config) {
    const std::string& name = config.hidden_act;
    if (name == "gelu") return BertActivation::gelu;
    if (name == "gelu_new" || name == "gelu_pytorch_tanh") return BertActivation::gelu_tanh;
    if (name == "relu") return BertActivation::relu;
    check(name == "silu", ErrorKind::value, "BertConfig: hidden_act is \"", name,
          "\"; known are gelu, gelu_new, gelu_pytorch_tanh, relu and silu");
    return BertActivation::silu;
}

// activation(dense(x)), in one op where linear() has that activation.
Tensor activated_linear(const Linear& dense, BertActivation activation, const Tensor& x) {
    switch (activation) {
        case BertActivation::gelu:
            return linear(x, dense.weight, dense.bias, LinearActivation::gelu);
        case BertActivation::gelu_tanh:
            return linear(x, dense.weight, dense.bias, LinearActivation::gelu_tanh);
        case BertActivation::relu:
            return linear(x, dense.weight, dense.bias, LinearActivation::relu);
        case BertActivation::silu:
            break;
    }
    return silu(dense(x));
}

void check_probability(const char* name, double p) {
    check(p >= 0 && p < 1, ErrorKind::value, "BertConfig: ", name, " is ", p, "; it must be in [0, 1)");
}

const BertConfig& checked(const BertConfig& c) {
    const auto positive = [](const char* name, std::int64_t n) {
        check(n > 0, ErrorKind::value, "BertConfig: ", name, " is ", n, "; it must be positive");
    };
    positive("vocab_size", c.vocab_size);
    positive("hidden_size", c.hidden_size);
    positive("num_attention_heads", c.num_attention_heads);
    positive("intermediate_size", c.intermediate_size);
    positive("max_position_embeddings", c.max_position_embeddings);
    positive("type_vocab_size", c.type_vocab_size);
    check(c.num_hidden_layers >= 0, ErrorKind::value, "BertConfig: num_hidden_layers is ",
          c.num_hidden_layers, "; it must not be negative");
    check(c.hidden_size % c.num_attention_heads == 0, ErrorKind::value, "BertConfig: hidden_size ",
          c.hidden_size, " is no multiple of num_attention_heads ", c.num_attention_heads);
    check(c.pad_token_id >= 0 && c.pad_token_id < c.vocab_size, ErrorKind::value, "BertConfig: pad_token_id ",
          c.pad_token_id, " is outside the vocabulary of ", c.vocab_size);
    check(c.initializer_range >= 0 && std::isfinite(c.initializer_range), ErrorKind::value,
          "BertConfig: initializer_range is ", c.initializer_range, "; it must be finite and not negative");
    check_probability("hidden_dropout_prob", c.hidden_dropout_prob);
    check_probability("attention_probs_dropout_prob", c.attention_probs_dropout_prob);
    check_probability("classifier_dropout", classifier_dropout(c));
    return c;
}

LayerNorm norm_of(const BertConfig& config) {
    return LayerNorm(config.hidden_size, {.eps = config.layer_norm_eps});
}

void check_ids(const char* name, const Tensor& ids, const Tensor& like, Dtype dtype) {
    check(ids.dtype() == dtype, ErrorKind::dtype, "Bert: ", name, " is ", ids.dtype(), ", but must be ",
          dtype, dtype == boolean ? "; compare it, as in ne(mask, 0)" : "; convert it with to(int64)");
    check(ids.shape() == like.shape(), ErrorKind::shape, "Bert: ", name, " ", ids.shape(),
          " differs from the ids ", like.shape(), "; all are [batch, length]");
}

}  // namespace

BertEmbeddings::BertEmbeddings(const BertConfig& c)
    : word_embeddings(c.vocab_size, c.hidden_size, {.padding_idx = c.pad_token_id}),
      position_embeddings(c.max_position_embeddings, c.hidden_size),
      token_type_embeddings(c.type_vocab_size, c.hidden_size),
      LayerNorm(norm_of(c)),
      dropout_p(c.hidden_dropout_prob) {}

Tensor BertEmbeddings::operator()(const Tensor& ids, const Tensor& token_type_ids) const {
    const ModuleScope here(*this);
    Tensor other = position_embeddings.weight.slice(0, 0, ids.size(1));
    if (token_type_ids.defined()) {
        other = token_type_embeddings(token_type_ids) + other;
    } else {
        other = other + token_type_embeddings.weight[0];
    }
    return dropout(LayerNorm(word_embeddings(ids) + other), dropout_p, training());
}

BertSelfAttention::BertSelfAttention(const BertConfig& c)
    : query(c.hidden_size, c.hidden_size),
      key(c.hidden_size, c.hidden_size),
      value(c.hidden_size, c.hidden_size),
      heads(c.num_attention_heads),
      dropout_p(c.attention_probs_dropout_prob) {
    // Makes the weights contiguous in memory, so that merged_linear() is one product.
    place_side_by_side({query.weight, key.weight, value.weight});
    place_side_by_side({query.bias, key.bias, value.bias});
}

Tensor BertSelfAttention::operator()(const Tensor& x, const Tensor& mask) const {
    const ModuleScope here(*this);
    const Tensor qkv =
        merged_linear(x, {query.weight, key.weight, value.weight}, {query.bias, key.bias, value.bias})
            .reshape({x.size(0), x.size(1), 3, heads, x.size(2) / heads});
    return packed_attention(qkv, {.mask = mask, .dropout_p = dropout_p, .training = training()})
        .reshape(x.shape());
}

BertResidual::BertResidual(std::int64_t in_features, const BertConfig& c)
    : dense(in_features, c.hidden_size), LayerNorm(norm_of(c)), dropout_p(c.hidden_dropout_prob) {}

Tensor BertResidual::operator()(const Tensor& x, const Tensor& residual) const {
    const ModuleScope here(*this);
    return dropout_add_layer_norm(linear(x, dense.weight), dense.bias, residual, LayerNorm.weight,
                                  LayerNorm.bias,
                                  {.p = dropout_p, .eps = LayerNorm.eps, .training = training()});
}

BertDense::BertDense(std::int64_t out_features, const BertConfig& c)
    : dense(c.hidden_size, out_features), activation(activation_of(c)) {}

Tensor BertDense::operator()(const Tensor& x) const {
    const ModuleScope here(*this);
    return activated_linear(dense, activation, x);
}

BertLayer::BertLayer(const BertConfig& c)
    : attention(c), intermediate(c.intermediate_size, c), output(c.intermediate_size, c) {}

Tensor BertLayer::operator()(const Tensor& x, const Tensor& mask) const {
    const ModuleScope here(*this);
    return with_hooks(
        [&](const Tensor& in) {
            const Tensor y = attention(in, mask);
            return output(intermediate(y), y);
        },
        x);
}

BertEncoder::BertEncoder(const BertConfig& c) {
    for (std::int64_t i = 0; i < c.num_hidden_layers; ++i) layer.emplace_back(c);
}

Tensor BertEncoder::operator()(const Tensor& x, const Tensor& mask) const {
    const ModuleScope here(*this);
    Tensor y = x;
    for (const BertLayer& one : layer) {
        if (!checkpoint_layers) {
            y = one(y, mask);
            continue;
        }
        const auto segment = [one, mask](const Tensors& in) { return Tensors{one(in[0], mask)}; };
        y = autograd::checkpoint(segment, {y})[0];
    }
    return y;
}

BertPooler::BertPooler(const BertConfig& c, bool is_present)
    : dense(is_present ? c.hidden_size : 0, is_present ? c.hidden_size : 0), present(is_present) {}

Tensor BertPooler::operator()(const Tensor& hidden) const {
    const ModuleScope here(*this);
    return present ? tanh(dense(hidden.select(1, 0))) : Tensor();
}

void BertPooler::visit_fields(FieldVisitor& visitor) {
    if (present) visitor.module("dense", dense);
}

Bert::Bert(const BertConfig& c, const BertOptions& options)
    : config(checked(c)), embeddings(c), encoder(c), pooler(c, options.pooler) {
    normal_weights(*this, c.initializer_range);
    NoGrad plain;
    embeddings.word_embeddings.weight[c.pad_token_id].zero_();
}

BertOutput Bert::operator()(const Tensor& ids, const BertInputs& inputs) const {
    const ModuleScope here(*this);
    check(ids.defined() && ids.dim() == 2, ErrorKind::shape, "Bert: ids must be [batch, length], not ",
          ids.defined() ? ids.shape() : Shape{});
    check_ids("ids", ids, ids, int64);
    const std::int64_t length = ids.size(1);
    check(length > 0 && length <= config.max_position_embeddings, ErrorKind::value, "Bert: length ", length,
          " is outside 1 to ", config.max_position_embeddings,
          " (max_position_embeddings); cut the text into shorter pieces");
    if (inputs.token_type_ids.defined()) check_ids("token_type_ids", inputs.token_type_ids, ids, int64);
    Tensor mask = inputs.attention_mask;
    if (mask.defined()) {
        check_ids("attention_mask", mask, ids, boolean);
        mask = mask.reshape({ids.size(0), 1, 1, length});
    }
    const Tensor hidden = encoder(embeddings(ids, inputs.token_type_ids), mask);
    return {hidden, pooler(hidden)};
}

BertForSequenceClassification::BertForSequenceClassification(const BertConfig& c,
                                                             const BertClassifierOptions& options)
    : bert(c, {.pooler = options.pooler}),
      classifier(c.hidden_size, c.num_labels),
      dropout_p(classifier_dropout(c)) {
    check(c.num_labels > 0, ErrorKind::value, "BertConfig: num_labels is ", c.num_labels,
          "; it must be positive");
    normal_weights(classifier, c.initializer_range);
    classifier.set_fp8(false);
}

Tensor BertForSequenceClassification::operator()(const Tensor& ids, const BertInputs& inputs) const {
    const ModuleScope here(*this);
    const BertOutput output = bert(ids, inputs);
    const Tensor text = bert.pooler.present ? output.pooler_output : output.last_hidden_state.select(1, 0);
    return classifier(dropout(text, dropout_p, training()));
}

BertPredictionTransform::BertPredictionTransform(const BertConfig& c)
    : dense(c.hidden_size, c.hidden_size),
      LayerNorm(c.hidden_size, {.eps = c.layer_norm_eps}),
      activation(activation_of(c)) {}

Tensor BertPredictionTransform::operator()(const Tensor& x) const {
    const ModuleScope here(*this);
    return LayerNorm(activated_linear(dense, activation, x));
}

BertPredictions::BertPredictions(const BertConfig& c) : bias(zeros({c.vocab_size})), transform(c) {}

Tensor BertPredictions::operator()(const Tensor& x, const Tensor& word_embeddings) const {
    const ModuleScope here(*this);
    return linear(transform(x), word_embeddings, bias);
}

MaskedTokens masked_tokens(const Tensor& labels, std::int64_t ignore_index) {
    check(labels.defined() && labels.dtype() == int64, ErrorKind::dtype,
          "masked_tokens: labels must be int64 [batch, length]");
    const std::vector<std::int64_t> all = labels.to_vector<std::int64_t>();
    std::vector<std::int64_t> positions, kept;
    for (std::size_t i = 0; i < all.size(); ++i) {
        if (all[i] == ignore_index) continue;
        positions.push_back(std::int64_t(i));
        kept.push_back(all[i]);
    }
    check(!kept.empty(), ErrorKind::value, "masked_tokens: all ", all.size(), " labels are ", ignore_index,
          "; there is nothing to predict");
    const Shape shape{std::int64_t(kept.size())};
    return {Tensor::from(positions, shape).to(labels.device()),
            Tensor::from(kept, shape).to(labels.device())};
}

BertForMaskedLM::BertForMaskedLM(const BertConfig& c) : bert(c, {.pooler = false}), cls(c) {
    normal_weights(cls, c.initializer_range);
    bert.embeddings.word_embeddings.set_fp8(false);  // the output layer
}

Tensor BertForMaskedLM::operator()(const Tensor& ids, const BertInputs& inputs) const {
    return cls.predictions(bert(ids, inputs).last_hidden_state, bert.embeddings.word_embeddings.weight);
}

Tensor BertForMaskedLM::logits_at(const Tensor& ids, const Tensor& positions,
                                  const BertInputs& inputs) const {
    const Tensor hidden = bert(ids, inputs).last_hidden_state;
    const Tensor rows = index_select(hidden.reshape({ids.numel(), hidden.size(2)}), 0, positions);
    return cls.predictions(rows, bert.embeddings.word_embeddings.weight);
}

Tensor BertForMaskedLM::loss(const Tensor& ids, const MaskedTokens& masked, const BertInputs& inputs) const {
    return cross_entropy(logits_at(ids, masked.positions, inputs), masked.labels);
}

}  // namespace mezzo::nn
