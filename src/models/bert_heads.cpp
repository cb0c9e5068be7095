// BERT as a classifier and as a masked language model.
#include "mezzo/module_scope.h"
#include "models/bert_parts.h"
#include "nn/normal_weights.h"

namespace mezzo::nn {

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
