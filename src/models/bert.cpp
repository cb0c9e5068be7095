// The encoder of BERT.
#include "mezzo/models/bert.h"

#include "mezzo/attention_ops.h"
#include "mezzo/autograd.h"
#include "mezzo/module_scope.h"
#include "models/bert_parts.h"
#include "nn/normal_weights.h"
#include "nn/replace.h"

namespace mezzo::nn {

namespace {

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
    check(c.initializer_range >= 0, ErrorKind::value, "BertConfig: initializer_range is ",
          c.initializer_range, "; it must not be negative");
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

double classifier_dropout(const BertConfig& config) {
    return config.classifier_dropout.value_or(config.hidden_dropout_prob);
}

BertActivation activation_of(const BertConfig& config) {
    const std::string& name = config.hidden_act;
    if (name == "gelu") return BertActivation::gelu;
    if (name == "gelu_new" || name == "gelu_pytorch_tanh") return BertActivation::gelu_tanh;
    if (name == "relu") return BertActivation::relu;
    check(name == "silu", ErrorKind::value, "BertConfig: hidden_act is \"", name,
          "\"; known are gelu, gelu_new, gelu_pytorch_tanh, relu and silu");
    return BertActivation::silu;
}

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

}  // namespace mezzo::nn
