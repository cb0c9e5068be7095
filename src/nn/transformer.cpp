// Multi-head attention and the Transformer encoder.
#include "mezzo/transformer.h"

#include <cmath>

#include <fmt/format.h>

#include "mezzo/attention_ops.h"
#include "mezzo/autograd.h"
#include "mezzo/module_scope.h"
#include "nn/heads.h"

namespace mezzo::nn {

namespace {

// U(-a, a) with a = sqrt(6 / (rows + cols)) (Glorot and Bengio, AISTATS 2010).
Parameter xavier_uniform(std::int64_t rows, std::int64_t cols) {
    const Tensor value = empty({rows, cols});
    const double bound = std::sqrt(6 / double(rows + cols));
    value.uniform_(-bound, bound);
    return Parameter(value);
}

void check_dropout_option(const char* module, double p) {
    check(p >= 0 && p < 1, ErrorKind::value, module, ": dropout is ", p, "; it must be in [0, 1)");
}

std::int64_t checked_width(std::int64_t embed_dim, std::int64_t num_heads) {
    check(num_heads > 0 && embed_dim > 0 && embed_dim % num_heads == 0, ErrorKind::value,
          "MultiheadAttention: embed_dim is ", embed_dim, ", num_heads ", num_heads,
          "; embed_dim must be a positive multiple of num_heads");
    checked_numel("MultiheadAttention", {3, embed_dim, embed_dim}, sizeof(float));
    return embed_dim;
}

// Parts first … first+count-1 of the three input projections of x, as heads.
Tensors project(const MultiheadAttention& attention, const Tensor& x, std::int64_t first,
                std::int64_t count) {
    const std::int64_t embed = attention.in_proj_weight.size(1), begin = first * embed,
                       end = (first + count) * embed;
    Tensor weight = attention.in_proj_weight, bias = attention.in_proj_bias;
    if (count < 3) {
        weight = weight.slice(0, begin, end);
        if (bias.defined()) bias = bias.slice(0, begin, end);
    }
    const Tensor y = linear(x, weight, bias);
    return split_heads(y, std::vector<std::int64_t>(std::size_t(count), attention.num_heads));
}

bool is_self_attention(const Tensor& query, const Tensor& key, const Tensor& value) {
    return query.impl() == key.impl() && key.impl() == value.impl();
}

Tensors projections(const MultiheadAttention& attention, const Tensor& query, const Tensor& key,
                    const Tensor& value) {
    if (is_self_attention(query, key, value)) return project(attention, query, 0, 3);
    Tensors result = project(attention, query, 0, 1);
    if (key.impl() == value.impl()) {
        for (Tensor& part : project(attention, key, 1, 2)) result.push_back(part);
    } else {
        result.push_back(project(attention, key, 1, 1)[0]);
        result.push_back(project(attention, value, 2, 1)[0]);
    }
    return result;
}

void check_inputs(const MultiheadAttention& attention, const Tensor& query, const Tensor& key,
                  const Tensor& value) {
    for (const Tensor* x : {&query, &key, &value})
        check(x->defined() && x->dim() == 3 && x->size(2) == attention.in_proj_weight.size(1),
              ErrorKind::shape, "MultiheadAttention: query, key and value must be [batch, length, ",
              attention.in_proj_weight.size(1), "], not ", x->defined() ? x->shape() : Shape{});
    check(query.size(0) == key.size(0) && key.size(0) == value.size(0) && key.size(1) == value.size(1),
          ErrorKind::shape, "MultiheadAttention: query ", query.shape(), ", key ", key.shape(), " and value ",
          value.shape(), " do not fit; they share batch, key and value also length");
}

// masks.mask as [batch, heads, query, key], with size 1 for batch or heads if all share one mask.
Tensor mask_of_heads(const Tensor& mask, std::int64_t batch, std::int64_t heads, std::int64_t query,
                     std::int64_t key) {
    const bool shared = mask.shape() == Shape{query, key};
    check(shared || mask.shape() == Shape{batch * heads, query, key}, ErrorKind::shape,
          "MultiheadAttention: mask ", mask.shape(), " is neither ", Shape{query, key}, " nor ",
          Shape{batch * heads, query, key}, " ([batch * num_heads, query, key])");
    return shared ? mask.reshape({1, 1, query, key}) : mask.reshape({batch, heads, query, key});
}

// The two masks as one for scaled_dot_product_attention.
Tensor combined_mask(const AttentionMasks& masks, const Tensor& query, const Tensor& key,
                     std::int64_t heads) {
    const std::int64_t batch = query.size(0), keys = key.size(1);
    Tensor real, other;
    if (masks.key_mask.defined()) {
        real = masks.key_mask;
        check(real.dtype() == boolean, ErrorKind::dtype, "MultiheadAttention: key_mask is ", real.dtype(),
              "; it must be boolean, true for real keys and false for padding");
        check(real.shape() == Shape{batch, keys}, ErrorKind::shape, "MultiheadAttention: key_mask ",
              real.shape(), " is not ", Shape{batch, keys}, " ([batch, key])");
        real = real.reshape({batch, 1, 1, keys});
    }
    if (masks.mask.defined()) other = mask_of_heads(masks.mask, batch, heads, query.size(1), keys);
    if (!other.defined() || !real.defined()) return other.defined() ? other : real;
    if (other.dtype() == boolean) return logical_and(real, other);
    const Shape both{batch, other.size(1), query.size(1), keys};
    return masked_fill(other.expand(both), logical_not(real), -1e30);
}

}  // namespace

MultiheadAttention::MultiheadAttention(std::int64_t embed_dim, std::int64_t heads,
                                       const MultiheadAttentionOptions& options)
    : in_proj_weight(xavier_uniform(3 * checked_width(embed_dim, heads), embed_dim)),
      out_proj(embed_dim, embed_dim, {.bias = options.bias}),
      num_heads(heads),
      dropout_p(options.dropout) {
    check_dropout_option("MultiheadAttention", dropout_p);
    if (!options.bias) return;
    in_proj_bias = Parameter(zeros({3 * embed_dim}));
    NoGrad plain;
    out_proj.bias.zero_();
}

std::string MultiheadAttention::describe() const {
    return fmt::format("embed_dim={}, num_heads={}, dropout={:g}, bias={}", in_proj_weight.size(1), num_heads,
                       dropout_p, in_proj_bias.defined());
}

Tensor MultiheadAttention::joined_heads(const Tensor& query, const Tensor& key, const Tensor& value,
                                        const AttentionMasks& masks) const {
    const ModuleScope here(*this);
    check_inputs(*this, query, key, value);
    const AttentionOptions options{.mask = combined_mask(masks, query, key, num_heads),
                                   .causal = masks.causal,
                                   .dropout_p = dropout_p,
                                   .training = training()};
    const bool adds = options.mask.defined() && options.mask.dtype() != boolean;
    if (is_self_attention(query, key, value) && !adds) {
        const Shape& s = query.shape();
        const Tensor qkv = linear(query, in_proj_weight, in_proj_bias);
        return packed_attention(qkv.reshape({s[0], s[1], 3, num_heads, s[2] / num_heads}), options)
            .reshape(s);
    }
    const Tensors heads = projections(*this, query, key, value);
    return join_heads(scaled_dot_product_attention(heads[0], heads[1], heads[2], options));
}

TransformerEncoderLayer::TransformerEncoderLayer(std::int64_t d_model, std::int64_t nhead,
                                                 const TransformerEncoderLayerOptions& options)
    : self_attn(d_model, nhead, {.dropout = options.dropout}),
      linear1(d_model, options.dim_feedforward),
      linear2(options.dim_feedforward, d_model),
      norm1(d_model, {.eps = options.layer_norm_eps}),
      norm2(d_model, {.eps = options.layer_norm_eps}),
      dropout_p(options.dropout),
      activation(options.activation),
      norm_first(options.norm_first) {}

// linear2(dropout(activation(linear1(x)))) with last_bias, which may be undefined, as the bias of linear2.
Tensor TransformerEncoderLayer::feed_forward(const Tensor& x, const Tensor& last_bias) const {
    const Tensor inner = dropout(linear(x, linear1.weight, linear1.bias, activation), dropout_p, training());
    return linear(inner, linear2.weight, last_bias);
}

Tensor TransformerEncoderLayer::normed_last(const Tensor& x, const AttentionMasks& masks) const {
    const auto finish = [&](const Tensor& y, const Tensor& y_bias, const Tensor& residual,
                            const LayerNorm& norm) {
        return dropout_add_layer_norm(y, y_bias, residual, norm.weight, norm.bias,
                                      {.p = dropout_p, .eps = norm.eps, .training = training()});
    };
    const Linear& out = self_attn.out_proj;
    const Tensor attended = linear(self_attn.joined_heads(x, x, x, masks), out.weight);
    const Tensor y = finish(attended, out.bias, x, norm1);
    return finish(feed_forward(y, {}), linear2.bias, y, norm2);
}

Tensor TransformerEncoderLayer::normed_first(const Tensor& x, const AttentionMasks& masks) const {
    const auto dropped = [&](const Tensor& y) { return dropout(y, dropout_p, training()); };
    const Tensor n = norm1(x);
    const Tensor y = x + dropped(self_attn(n, n, n, masks));
    return y + dropped(feed_forward(norm2(y), linear2.bias));
}

Tensor TransformerEncoderLayer::operator()(const Tensor& x, const AttentionMasks& masks) const {
    const ModuleScope here(*this);
    return norm_first ? normed_first(x, masks) : normed_last(x, masks);
}

TransformerEncoder::TransformerEncoder(std::int64_t d_model, std::int64_t nhead,
                                       const TransformerEncoderOptions& options)
    : norm(d_model, {.eps = options.layer.layer_norm_eps}),
      final_norm(options.final_norm),
      checkpoint_layers(options.checkpoint_layers) {
    check(options.num_layers >= 0, ErrorKind::value, "TransformerEncoder: num_layers is ", options.num_layers,
          "; it must not be negative");
    for (std::int64_t i = 0; i < options.num_layers; ++i) layers.emplace_back(d_model, nhead, options.layer);
}

void TransformerEncoder::visit_fields(FieldVisitor& visitor) {
    detail::visit_fields(visitor, "layers", layers);
    if (final_norm) visitor.module("norm", norm);
}

Tensor TransformerEncoder::operator()(const Tensor& x, const AttentionMasks& masks) const {
    const ModuleScope here(*this);
    Tensor y = x;
    for (const TransformerEncoderLayer& layer : layers) {
        if (!checkpoint_layers) {
            y = layer(y, masks);
            continue;
        }
        const auto segment = [layer, masks](const Tensors& in) { return Tensors{layer(in[0], masks)}; };
        y = autograd::checkpoint(segment, {y})[0];
    }
    return final_norm ? norm(y) : y;
}

}  // namespace mezzo::nn
