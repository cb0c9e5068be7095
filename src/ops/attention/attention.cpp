// scaled_dot_product_attention. The op works on [batch, length, heads, dim], the layout in which linear
// layers write the heads, so that nothing is transposed in memory; the public function permutes views.
#include <algorithm>
#include <cmath>

#include "autograd/op_observer.h"
#include "mezzo/reduce_ops.h"
#include "ops/attention/attention.h"

namespace mezzo {

namespace {

using Attention = kernels::ScaledDotProductAttention;

// [batch, length, heads, dim] <-> [batch, heads, length, dim].
Tensor heads_swapped(const Tensor& x) { return x.permute({0, 2, 1, 3}); }

// [query, key]: true where a causal query may attend to the key. The last query attends to all keys, so that
// a prompt whose first keys are cached can be continued.
Tensor lower_triangle(std::int64_t query, std::int64_t key, Device device) {
    const TensorOptions options{.dtype = int64, .device = device};
    return arange(key, options) <= arange(query, options).unsqueeze(1) + double(key - query);
}

// True where a query may not attend to the key, broadcastable to the scores; undefined if every query may
// attend to every key.
Tensor hidden(const Tensor& mask, bool causal, std::int64_t query, std::int64_t key, Device device) {
    const Tensor triangle = causal ? lower_triangle(query, key, device) : Tensor();
    if (!mask.defined()) return causal ? logical_not(triangle) : Tensor();
    return logical_not(causal ? logical_and(mask, triangle) : mask);
}

// Pairs that a boolean mask, an additive one of -inf, or causality hides; undefined if none can be.
Tensor hidden_pairs(const Tensor& q, const Tensor& k, const Tensor& mask, const Attention& at) {
    const bool additive = mask.defined() && mask.dtype() != boolean;
    const Tensor hide = hidden(additive ? Tensor() : mask, at.causal, q.size(2), k.size(2), q.device());
    if (!additive) return hide;
    const Tensor unseen = eq(cast(mask, autocast_dtype(CastPolicy::low, q)), -INFINITY);
    return hide.defined() ? logical_or(hide, unseen) : unseen;
}

// Keys or values [batch, heads, key, dim] for products in which weights of 0 hide rows of them: 0 times an
// element that is not finite would be NaN. `bad` [batch, heads, key, dim] is undefined if nothing is hidden.
struct HiddenRows {
    Tensor x, bad;
    HiddenRows(const Tensor& given, bool hides) : x(given) {
        if (!hides) return;
        bad = logical_not(isfinite(given));
        x = masked_fill(given, bad, 0);
    }
    // Products with the rows, [batch, heads, query, key]: NaN where a row was not finite, unless hidden.
    Tensor restored(const Tensor& products, const Tensor& hide, double hidden_value) const {
        if (!bad.defined()) return products;
        const Tensor rows = any(bad, {-1}).unsqueeze(2);
        return masked_fill(masked_fill(products, rows, NAN), hide, hidden_value);
    }
};

// softmax(scale q k^T + mask): [batch, heads, query, key] from q and k of [batch, heads, length, dim]. Scores
// that are hidden, also by an additive mask of -inf, become -1e30, so that a row with no other score stays
// finite; their weights become 0.
Tensor attention_weights(const Tensor& q, const Tensor& k, const Tensor& mask, const Tensor& hide,
                         const Attention& at) {
    const HiddenRows keys(k, hide.defined());
    Tensor scores = matmul(q * at.scale, keys.x.transpose(-2, -1));
    if (mask.defined() && mask.dtype() != boolean) scores = scores + cast(mask, scores.dtype());
    const Tensor weights = softmax(keys.restored(scores, hide, -1e30), -1);
    return hide.defined() ? masked_fill(weights, hide, 0) : weights;
}

// Sums of the rows of v. A row that is not finite makes NaN of the sums in which its weight is not 0.
Tensor weighted_sums(const Tensor& weights, const Tensor& v, bool hides) {
    const HiddenRows values(v, hides);
    const Tensor y = matmul(weights, values.x);
    if (!hides) return y;
    const Tensor reads = matmul(cast(ne(weights, 0), weights.dtype()), cast(values.bad, weights.dtype()));
    return masked_fill(y, gt(reads, 0), NAN);
}

Tensor dropped(const Tensor& weights, const Attention& at) {
    return dropout_at(weights, at.dropout_p, at.stream);
}

}  // namespace

Tensors attention_decomposition(In in, const Attention& at) {
    const Tensor q = heads_swapped(in[0]), k = heads_swapped(in[1]), v = heads_swapped(in[2]);
    const Tensor hide = hidden_pairs(q, k, in[3], at);
    const Tensor y = weighted_sums(dropped(attention_weights(q, k, in[3], hide, at), at), v, hide.defined());
    return {heads_swapped(y).contiguous()};
}

// Inputs g, q, k, v, y, max, sum, mask -> gradients of q, k, v. With p the weights, d their dropout:
// dv = d(p)^T g, dp = d(g v^T), ds = p (dp - sum(p dp)), dq = scale ds k, dk = scale ds^T q.
// y, max and sum are functions of q, k and v. They are not read here, so that the derivative of this function
// by q, k and v is complete.
Tensors attention_grad_decomposition(In in, const kernels::ScaledDotProductAttentionGrad& grad) {
    const Attention& at = grad.forward;
    const Tensor g = heads_swapped(in[0]), q = heads_swapped(in[1]), k = heads_swapped(in[2]),
                 v = heads_swapped(in[3]);
    const Tensor hide = hidden_pairs(q, k, in[7], at);
    const HiddenRows keys(k, hide.defined()), values(v, hide.defined());
    const Tensor p = attention_weights(q, k, in[7], hide, at);
    const Tensor dp = dropped(values.restored(matmul(g, values.x.transpose(-2, -1)), hide, 0), at);
    const Tensor ds = p * (dp - sum(p * dp, {-1}, keep_dims())) * at.scale;
    Tensors grads{matmul(ds, keys.x), matmul(ds.transpose(-2, -1), q),
                  matmul(dropped(p, at).transpose(-2, -1), g)};
    for (Tensor& x : grads) x = heads_swapped(x).contiguous();
    return grads;
}

Tensor with_unit_stride(const Tensor& x) {
    return x.size(-1) <= 1 || x.strides()[x.dim() - 1] == 1 ? x : x.contiguous();
}

namespace {

const Op<kernels::ScaledDotProductAttentionGrad> attention_grad_op{
    {.name = "scaled_dot_product_attention_grad", .strided = true, .mixed = true},
    nullptr,
    attention_grad_decomposition};

Tensors attention_vjp(const Node& c, const Attention& at, const Tensors& g) {
    const Shape shapes[] = {c.inputs[0].shape, c.inputs[1].shape, c.inputs[2].shape};
    Tensors grads =
        call(attention_grad_op,
             Tensors{with_unit_stride(g[0]), c.in(0), c.in(1), c.in(2), c.out(), c.out(1), c.out(2), c.in(3)},
             {.forward = at}, shapes);
    grads.push_back(Tensor());
    return grads;
}

const Op<kernels::ScaledDotProductAttention> attention_op{{.name = "scaled_dot_product_attention",
                                                           .cast = CastPolicy::low,
                                                           .saves = save_inputs | save_outputs,
                                                           .strided = true,
                                                           .mixed = true,
                                                           .first_float32_result = 1},
                                                          attention_vjp,
                                                          attention_decomposition};

bool broadcasts(const Shape& from, const Shape& to) {
    const int lead = to.size() - from.size();
    bool fits = lead >= 0;
    for (int d = 0; fits && d < from.size(); ++d) fits = from[d] == 1 || from[d] == to[lead + d];
    return fits;
}

void check_attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options) {
    const char* op = "scaled_dot_product_attention";
    for (const auto& [what, x] : {std::pair("q", &q), std::pair("k", &k), std::pair("v", &v)}) {
        check_floating(op, *x, what);
        check(x->dim() == 4, ErrorKind::shape, op, ": q, k and v must be [batch, heads, length, dim], not ",
              x->shape());
    }
    check(autocast_dtype(CastPolicy::low, q) == autocast_dtype(CastPolicy::low, k) &&
              autocast_dtype(CastPolicy::low, k) == autocast_dtype(CastPolicy::low, v),
          ErrorKind::dtype, op, ": q, k, v are ", q.dtype(), ", ", k.dtype(), ", ", v.dtype(),
          "; convert them to one dtype with to()");
    check(q.size(0) == k.size(0) && q.size(3) == k.size(3) && v.size(0) == k.size(0) &&
              v.size(1) == k.size(1) && v.size(2) == k.size(2),
          ErrorKind::shape, op, ": q ", q.shape(), ", k ", k.shape(), " and v ", v.shape(),
          " do not fit; batch must agree, heads and length of k and v, dim of q and k");
    check(q.size(1) == k.size(1) || (k.size(1) > 0 && q.size(1) % k.size(1) == 0), ErrorKind::shape, op,
          ": q ", q.shape(), " has ", q.size(1), " heads and k ", k.shape(), " has ", k.size(1),
          "; those of q must be a multiple of those of k");
    check_attention_options(op, {q.size(0), q.size(1), q.size(2), k.size(2)}, options);
}

// `mask` is undefined or has the shape of the scores.
Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask, const Attention& at) {
    if (v.size(3) != q.size(3) || (mask.defined() && mask.dtype() != boolean)) {
        const Dtype dtype = autocast_dtype(CastPolicy::low, q);
        const auto read = [&](const Tensor& x) { return widened(cast(x, dtype)); };
        const Tensor wide_q = read(q), wide_k = read(k), hide = hidden_pairs(wide_q, wide_k, mask, at);
        const Tensor weights = attention_weights(wide_q, wide_k, mask, hide, at);
        return cast(weighted_sums(dropped(weights, at), read(v), hide.defined()), dtype);
    }
    Tensors in;
    for (const Tensor* x : {&q, &k, &v}) in.push_back(with_unit_stride(heads_swapped(*x)));
    in.push_back(mask);
    const Shape rows{q.size(0), q.size(1), q.size(2)}, shapes[] = {in[0].shape(), rows, rows};
    return heads_swapped(call(attention_op, in, at, std::span(shapes, recording(q, k, v) ? 3 : 1))[0]);
}

// `mask` for `groups` query heads per head of key and value: [batch, heads of k, groups, query, key] with the
// first two dimensions joined.
Tensor grouped_mask(const Tensor& mask, const Shape& k, std::int64_t groups) {
    Shape own = mask.shape();
    while (own.size() < 4) own.insert(0, 1);
    const bool of_heads = own[1] > 1;
    const Shape joined{k[0] * k[1], of_heads ? groups : 1, own[2], own[3]};
    return mask.expand({k[0], of_heads ? k[1] * groups : k[1], own[2], own[3]}).reshape(joined);
}

// Grouped-query attention (Ainslie et al., arXiv 2305.13245): query heads in groups that share a head of key
// and value. Each group becomes a batch item, with views of the shared key and value for each of its heads.
// Keys and values of a cache are not copied, because there batch and heads can be joined as a view.
Tensor attend_in_groups(const Tensor& q, const Tensor& k, const Tensor& v, AttentionOptions options) {
    const std::int64_t items = k.size(0) * k.size(1), groups = q.size(1) / k.size(1);
    const auto shared = [&](const Tensor& x) {
        return x.reshape({items, 1, x.size(2), x.size(3)}).expand({items, groups, x.size(2), x.size(3)});
    };
    if (options.mask.defined()) options.mask = grouped_mask(options.mask, k.shape(), groups);
    const Tensor y = scaled_dot_product_attention(q.reshape({items, groups, q.size(2), q.size(3)}), shared(k),
                                                  shared(v), options);
    return y.reshape({q.size(0), q.size(1), q.size(2), v.size(3)});
}

}  // namespace

void check_attention_options(const char* op, const Shape& scores, const AttentionOptions& options) {
    check_dropout(op, options.dropout_p);
    check(options.scale >= 0, ErrorKind::value, op, ": scale ", options.scale,
          " is negative or not a number; 0 stands for 1 / sqrt(dim)");
    if (!options.mask.defined()) return;
    check(broadcasts(options.mask.shape(), scores), ErrorKind::shape, op, ": mask ", options.mask.shape(),
          " does not broadcast to [batch, heads, query, key] = ", scores);
    check_computes(op, options.mask.dtype());
    check(options.mask.dtype() == boolean || is_floating(options.mask.dtype()), ErrorKind::dtype, op,
          ": mask is ", options.mask.dtype(), "; it must be boolean (true: look) or floating (added)");
}

Attention attention_attributes(const AttentionOptions& options, std::int64_t dim) {
    const double usual = 1 / std::sqrt(double(std::max<std::int64_t>(1, dim)));
    return {.scale = options.scale > 0 ? options.scale : usual, .causal = options.causal};
}

Tensor scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                    const AttentionOptions& options) {
    const CompositeOp here("scaled_dot_product_attention");
    check_attention(q, k, v, options);
    if (q.size(1) != k.size(1)) return attend_in_groups(q, k, v, options);
    const Shape scores{q.size(0), q.size(1), q.size(2), k.size(2)};
    const Tensor mask = options.mask.defined() ? options.mask.expand(scores) : Tensor();
    return with_attention_attributes(options, scores, q.size(3),
                                     [&](const Attention& at) { return attend(q, k, v, mask, at); });
}

}  // namespace mezzo
