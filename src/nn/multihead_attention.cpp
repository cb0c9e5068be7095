// Multi-head attention.
#include <cmath>

#include <fmt/format.h>

#include "core/tensor_impl.h"
#include "mezzo/attention_ops.h"
#include "mezzo/autograd.h"
#include "mezzo/module_scope.h"
#include "mezzo/quantize.h"
#include "mezzo/transformer.h"
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

// Whether key and value have the size of the query, so that one parameter holds all three projections.
bool one_weight(const MultiheadAttentionOptions& o, std::int64_t embed_dim) {
    return (o.kdim == 0 || o.kdim == embed_dim) && (o.vdim == 0 || o.vdim == embed_dim);
}

// Parts first … first+count-1 of the three input projections of x, as heads.
Tensors project(const MultiheadAttention& attention, const Tensor& x, std::int64_t first,
                std::int64_t count) {
    const std::int64_t embed = attention.out_proj.weight.size(1), begin = first * embed,
                       end = (first + count) * embed;
    Tensor weight = attention.in_proj_weight, bias = attention.in_proj_bias;
    if (!weight.defined()) {
        const Parameter* const own[] = {&attention.q_proj_weight, &attention.k_proj_weight,
                                        &attention.v_proj_weight};
        weight = *own[first];
    } else if (count < 3) {
        weight = weight.slice(0, begin, end);
        keep_fp8(weight, attention.in_proj_weight);
        if (const Tensor scale = weight_scale(attention.in_proj_weight); scale.defined())
            weight->grads().scale = scale.slice(0, begin, end);
    }
    if (bias.defined() && count < 3) bias = bias.slice(0, begin, end);
    const Tensor y = linear(x, weight, bias);
    return split_heads(y, std::vector<std::int64_t>(std::size_t(count), attention.num_heads));
}

bool is_self_attention(const Tensor& query, const Tensor& key, const Tensor& value) {
    return query.impl() == key.impl() && key.impl() == value.impl();
}

Tensors projections(const MultiheadAttention& attention, const Tensor& query, const Tensor& key,
                    const Tensor& value) {
    const bool merged = attention.in_proj_weight.defined();
    if (merged && is_self_attention(query, key, value)) return project(attention, query, 0, 3);
    Tensors result = project(attention, query, 0, 1);
    if (merged && key.impl() == value.impl()) {
        for (Tensor& part : project(attention, key, 1, 2)) result.push_back(part);
    } else {
        result.push_back(project(attention, key, 1, 1)[0]);
        result.push_back(project(attention, value, 2, 1)[0]);
    }
    return result;
}

void check_inputs(const MultiheadAttention& attention, const Tensor& query, const Tensor& key,
                  const Tensor& value) {
    const bool merged = attention.in_proj_weight.defined();
    const auto check_one = [](const char* what, const Tensor& x, const Parameter& weight) {
        check(x.defined() && x.dim() == 3 && x.size(2) == weight.size(1), ErrorKind::shape,
              "MultiheadAttention: ", what, " must be [batch, length, ", weight.size(1), "], not ",
              x.defined() ? x.shape() : Shape{});
    };
    check_one("query", query, merged ? attention.in_proj_weight : attention.q_proj_weight);
    check_one("key", key, merged ? attention.in_proj_weight : attention.k_proj_weight);
    check_one("value", value, merged ? attention.in_proj_weight : attention.v_proj_weight);
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

// AttentionMasks::causal as a boolean mask [query, key].
Tensor causal_mask(std::int64_t query, std::int64_t key, Device device) {
    const TensorOptions like{.dtype = int64, .device = device};
    return le(arange(key, like), arange(query, like).unsqueeze(1) + (key - query));
}

// The mask with a causal one, and with `more` keys behind, to which every query attends.
Tensor extended_mask(Tensor mask, const Tensor& causal, std::int64_t more) {
    if (causal.defined()) {
        if (!mask.defined())
            mask = causal.unsqueeze(0).unsqueeze(0);
        else if (mask.dtype() == boolean)
            mask = logical_and(mask, causal);
        else
            mask = masked_fill(mask, logical_not(causal), -1e30);
    }
    if (!mask.defined() || more == 0) return mask;
    Shape shape = mask.shape();
    shape[3] = more;
    const TensorOptions like{.dtype = mask.dtype(), .device = mask.device()};
    return cat({mask, full(shape, mask.dtype() == boolean ? 1 : 0, like)}, 3);
}

}  // namespace

struct MultiheadAttention::Heads {
    Tensor query, key, value;
    Tensor mask;
    bool causal;
};

MultiheadAttention::MultiheadAttention(std::int64_t embed_dim, std::int64_t heads,
                                       const MultiheadAttentionOptions& o)
    : in_proj_weight(one_weight(o, checked_width(embed_dim, heads)) ? xavier_uniform(3 * embed_dim, embed_dim)
                                                                    : Parameter()),
      out_proj(embed_dim, embed_dim, {.bias = o.bias}),
      num_heads(heads),
      dropout_p(o.dropout),
      add_zero_attn(o.add_zero_attn) {
    check_dropout_option("MultiheadAttention", dropout_p);
    check(o.kdim >= 0 && o.vdim >= 0, ErrorKind::value, "MultiheadAttention: kdim is ", o.kdim, ", vdim ",
          o.vdim, "; neither may be negative");
    if (!in_proj_weight.defined()) {
        q_proj_weight = xavier_uniform(embed_dim, embed_dim);
        k_proj_weight = xavier_uniform(embed_dim, o.kdim > 0 ? o.kdim : embed_dim);
        v_proj_weight = xavier_uniform(embed_dim, o.vdim > 0 ? o.vdim : embed_dim);
    }
    if (o.add_bias_kv)
        for (Parameter* row : {&bias_k, &bias_v})
            *row = Parameter(empty({1, 1, embed_dim}).normal_(0, 1 / std::sqrt(double(embed_dim))));
    if (!o.bias) return;
    in_proj_bias = Parameter(zeros({3 * embed_dim}));
    NoGrad plain;
    out_proj.bias.zero_();
}

std::string MultiheadAttention::describe() const {
    return fmt::format("embed_dim={}, num_heads={}, dropout={:g}, bias={}", out_proj.weight.size(1),
                       num_heads, dropout_p, in_proj_bias.defined());
}

MultiheadAttention::Heads MultiheadAttention::heads_of(const Tensor& query, const Tensor& key,
                                                       const Tensor& value,
                                                       const AttentionMasks& masks) const {
    const Tensors parts = projections(*this, query, key, value);
    Heads heads{.query = parts[0],
                .key = parts[1],
                .value = parts[2],
                .mask = combined_mask(masks, query, key, num_heads),
                .causal = masks.causal};
    const std::int64_t more = (bias_k.defined() ? 1 : 0) + (add_zero_attn ? 1 : 0);
    if (more == 0) return heads;
    const Shape row{query.size(0), num_heads, 1, out_proj.weight.size(1) / num_heads};
    const auto append = [&](Tensor& to, const Parameter& bias) {
        if (bias.defined())
            to = cat({to, cast(bias, to.dtype()).reshape({1, row[1], 1, row[3]}).expand(row)}, 2);
        if (add_zero_attn) to = cat({to, zeros(row, {.dtype = to.dtype(), .device = to.device()})}, 2);
    };
    append(heads.key, bias_k);
    append(heads.value, bias_v);
    const Tensor causal = masks.causal ? causal_mask(query.size(1), key.size(1), query.device()) : Tensor();
    heads.mask = extended_mask(heads.mask, causal, more);
    heads.causal = false;
    return heads;
}

Tensor MultiheadAttention::joined_heads(const Tensor& query, const Tensor& key, const Tensor& value,
                                        const AttentionMasks& masks) const {
    const ModuleScope here(*this);
    check_inputs(*this, query, key, value);
    const bool adds = masks.mask.defined() && masks.mask.dtype() != boolean;
    const bool plain = in_proj_weight.defined() && !bias_k.defined() && !add_zero_attn;
    if (plain && is_self_attention(query, key, value) && !adds) {
        const AttentionOptions options{.mask = combined_mask(masks, query, key, num_heads),
                                       .causal = masks.causal,
                                       .dropout_p = dropout_p,
                                       .training = training()};
        const Shape& s = query.shape();
        const Tensor qkv = linear(query, in_proj_weight, in_proj_bias);
        return packed_attention(qkv.reshape({s[0], s[1], 3, num_heads, s[2] / num_heads}), options)
            .reshape(s);
    }
    const Heads heads = heads_of(query, key, value, masks);
    return join_heads(scaled_dot_product_attention(
        heads.query, heads.key, heads.value,
        {.mask = heads.mask, .causal = heads.causal, .dropout_p = dropout_p, .training = training()}));
}

Tensor MultiheadAttention::operator()(const Tensor& query, const Tensor& key, const Tensor& value,
                                      const AttentionMasks& masks) const {
    return with_hooks([&](const Tensor& q, const Tensor& k,
                          const Tensor& v) { return out_proj(joined_heads(q, k, v, masks)); },
                      query, key, value);
}

AttentionResult MultiheadAttention::attend(const Tensor& query, const Tensor& key, const Tensor& value,
                                           const AttentionMasks& masks, bool average_heads) const {
    const auto run = [&](const Tensor& q, const Tensor& k, const Tensor& v) {
        const ModuleScope here(*this);
        check_inputs(*this, q, k, v);
        const Heads heads = heads_of(q, k, v, masks);
        const std::int64_t length = heads.query.size(2), keys = heads.key.size(2);
        const Tensor causal = heads.causal ? causal_mask(length, keys, q.device()) : Tensor();
        const Tensor mask = extended_mask(heads.mask, causal, 0);
        const bool hides = mask.defined() && mask.dtype() == boolean;
        Tensor scores =
            matmul(heads.query * (1 / std::sqrt(double(heads.query.size(3)))), heads.key.transpose(2, 3));
        if (mask.defined()) scores = hides ? masked_fill(scores, logical_not(mask), -1e30) : scores + mask;
        Tensor weights = softmax(scores, -1);
        if (hides) weights = masked_fill(weights, logical_not(mask), 0);
        weights = dropout(weights, dropout_p, training());
        const Tensor output = out_proj(join_heads(matmul(weights, heads.value)));
        return Tensors{output, average_heads ? mean(weights, {1}) : weights};
    };
    const Tensors result = with_hooks(run, query, key, value);
    return {result[0], result[1]};
}

}  // namespace mezzo::nn
