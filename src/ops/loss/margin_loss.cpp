// Losses without kernels, in terms of other ops. Under autocast, and for 16 bit, they are computed in
// float32.
#include <cmath>

#include "autograd/op_observer.h"
#include "mezzo/loss_ops.h"
#include "mezzo/product_ops.h"
#include "ops/loss/loss_common.h"

namespace mezzo {

namespace {

struct KlDiv {
    static constexpr const char* name = "kl_div";
    Reduction reduction = Reduction::mean;
    bool batch_mean = false, log_target = false;
};

// Loss per element of kl_div. Elements with target 0 give 0, and so does their gradient by the input.
Tensor kl_value(const Tensor& x, const Tensor& t, bool log_target) {
    if (log_target) {
        const Tensor p = exp(t), zero = eq(p, 0.0);
        return p * (masked_fill(t, zero, 0) - where(zero, 0.0, x));
    }
    const Tensor zero = eq(t, 0.0);
    return masked_fill(t * log(masked_fill(t, zero, 1)), zero, 0) - weighted(t, x);
}

const Op<KlDiv> kl_div_op{{.cast = CastPolicy::fp32, .result = ResultDtype::promoted},
                          nullptr,
                          [](In in, const KlDiv& at) -> Tensors {
                              const Tensor value = kl_value(in[0], in[1], at.log_target);
                              if (!at.batch_mean) return {reduced(value, at.reduction)};
                              return {sum(value) / double(value.dim() > 0 ? value.size(0) : 1)};
                          }};

struct HingeEmbedding {
    static constexpr const char* name = "hinge_embedding_loss";
    double margin = 1;
    Reduction reduction = Reduction::mean;
};

// x where t is 1, max(0, margin - x) where it is -1; PyTorch's sum of the two cases for any other t, too.
const Op<HingeEmbedding> hinge_embedding_op{
    {.cast = CastPolicy::fp32, .result = ResultDtype::promoted},
    nullptr,
    [](In in, const HingeEmbedding& at) -> Tensors {
        const Tensor &x = in[0], &t = in[1];
        const Tensor far = masked_fill(relu(at.margin - x), eq(t, 1.0), 0);
        return {reduced(far + masked_fill(x, eq(t, -1.0), 0), at.reduction)};
    }};

struct CosineEmbedding {
    static constexpr const char* name = "cosine_embedding_loss";
    double margin = 0;
    Reduction reduction = Reduction::mean;
};

// With PyTorch's 1e-12 under the root, which differs from the eps of cosine_similarity().
const Op<CosineEmbedding> cosine_embedding_op{
    {.cast = CastPolicy::fp32, .result = ResultDtype::promoted},
    nullptr,
    [](In in, const CosineEmbedding& at) -> Tensors {
        const Tensor &a = in[0], &b = in[1], &t = in[2];
        const Tensor sizes = (sum(square(a), {-1}) + 1e-12) * (sum(square(b), {-1}) + 1e-12);
        const Tensor cosine = sum(a * b, {-1}) / sqrt(sizes);
        const Tensor same = masked_fill(1.0 - cosine, ne(t, 1.0), 0);
        const Tensor other = masked_fill(relu(cosine - at.margin), ne(t, -1.0), 0);
        return {reduced(same + other, at.reduction)};
    }};

struct TripletMargin {
    static constexpr const char* name = "triplet_margin_loss";
    TripletOptions options = {};
};

const Op<TripletMargin> triplet_margin_op{
    {.cast = CastPolicy::fp32, .result = ResultDtype::promoted},
    nullptr,
    [](In in, const TripletMargin& at) -> Tensors {
        const TripletOptions& o = at.options;
        const auto distance = [&](const Tensor& a, const Tensor& b) {
            return pairwise_distance(a, b, {.p = o.p, .eps = o.eps});
        };
        Tensor away = distance(in[0], in[2]);
        if (o.swap) away = minimum(away, distance(in[1], in[2]));
        return {reduced(relu(distance(in[0], in[1]) - away + o.margin), o.reduction)};
    }};

struct MarginRanking {
    static constexpr const char* name = "margin_ranking_loss";
    double margin = 0;
    Reduction reduction = Reduction::mean;
};

const Op<MarginRanking> margin_ranking_op{
    {.cast = CastPolicy::fp32, .result = ResultDtype::promoted},
    nullptr,
    [](In in, const MarginRanking& at) -> Tensors {
        return {reduced(relu(in[2] * (in[1] - in[0]) + at.margin), at.reduction)};
    }};

struct SoftMargin {
    static constexpr const char* name = "soft_margin_loss";
    Reduction reduction = Reduction::mean;
};

const Op<SoftMargin> soft_margin_op{
    {.cast = CastPolicy::fp32, .result = ResultDtype::promoted},
    nullptr,
    [](In in, const SoftMargin& at) -> Tensors { return {reduced(softplus(-in[1] * in[0]), at.reduction)}; }};

void check_triplet(const char* op, double margin) {
    check(margin > 0, ErrorKind::value, op, ": margin is ", margin, "; it must be positive");
}

}  // namespace

Tensor kl_div(const Tensor& input, const Tensor& target, KlDivOptions options) {
    check_floating("kl_div", input);
    check_floating("kl_div", target, "target");
    const Shape shape = broadcast_shapes("kl_div", input.shape(), target.shape());
    const KlDiv at{
        .reduction = options.reduction, .batch_mean = options.batch_mean, .log_target = options.log_target};
    return call(kl_div_op, {input, target}, at,
                options.batch_mean ? Shape{} : result_shape("kl_div", shape, options.reduction));
}

Tensor hinge_embedding_loss(const Tensor& input, const Tensor& target, MarginOptions options) {
    const char* name = "hinge_embedding_loss";
    check_floating(name, input);
    check_defined(name, target);
    const Shape shape = broadcast_shapes(name, input.shape(), target.shape());
    return call(hinge_embedding_op, {input, target},
                {.margin = options.margin, .reduction = options.reduction},
                result_shape(name, shape, options.reduction));
}

Tensor cosine_embedding_loss(const Tensor& a, const Tensor& b, const Tensor& target, MarginOptions options) {
    const char* name = "cosine_embedding_loss";
    check_floating(name, a);
    check_floating(name, b);
    check_defined(name, target);
    check_same_shape(name, a, b);
    check((a.dim() == 2 && target.dim() == 1 && target.size(0) == a.size(0)) ||
              (a.dim() == 1 && target.dim() == 0),
          ErrorKind::shape, name, ": inputs ", a.shape(), " and target ", target.shape(),
          " are neither [rows, n] and [rows] nor [n] and []");
    return call(cosine_embedding_op, {a, b, target},
                {.margin = options.margin, .reduction = options.reduction},
                result_shape(name, target.shape(), options.reduction));
}

Tensor triplet_margin_loss(const Tensor& anchor, const Tensor& positive, const Tensor& negative,
                           TripletOptions options) {
    const char* name = "triplet_margin_loss";
    for (const Tensor& x : {anchor, positive, negative}) check_floating(name, x);
    check(options.p >= 0, ErrorKind::value, name, ": p is ", options.p, "; it must not be negative");
    check_triplet(name, options.margin);
    Shape shape =
        broadcast_shapes(name, anchor.shape(), broadcast_shapes(name, positive.shape(), negative.shape()));
    check(shape.size() > 0, ErrorKind::shape, name, ": inputs are 0-dim");
    return call(triplet_margin_op, {anchor, positive, negative}, {.options = options},
                result_shape(name, reduced_shape(shape, {shape.size() - 1}, false), options.reduction));
}

Tensor triplet_margin_with_distance_loss(const Tensor& anchor, const Tensor& positive, const Tensor& negative,
                                         const TripletDistanceOptions& options) {
    const char* name = "triplet_margin_with_distance_loss";
    const CompositeOp here(name);
    for (const Tensor& x : {anchor, positive, negative}) check_floating(name, x);
    check_triplet(name, options.margin);
    check_reduction(name, options.reduction);
    const auto distance = [&](const Tensor& a, const Tensor& b) {
        return options.distance ? (*options.distance)(a, b) : pairwise_distance(a, b);
    };
    Tensor away = distance(anchor, negative);
    if (options.swap) away = minimum(away, distance(positive, negative));
    return reduced(relu(distance(anchor, positive) - away + options.margin), options.reduction);
}

Tensor margin_ranking_loss(const Tensor& a, const Tensor& b, const Tensor& target, MarginOptions options) {
    const char* name = "margin_ranking_loss";
    check_floating(name, a);
    check_floating(name, b);
    check_defined(name, target);
    const Shape shape = broadcast_shapes(name, target.shape(), broadcast_shapes(name, a.shape(), b.shape()));
    return call(margin_ranking_op, {a, b, target}, {.margin = options.margin, .reduction = options.reduction},
                result_shape(name, shape, options.reduction));
}

Tensor soft_margin_loss(const Tensor& input, const Tensor& target, LossOptions options) {
    const char* name = "soft_margin_loss";
    check_floating(name, input);
    check_defined(name, target);
    const Shape shape = broadcast_shapes(name, input.shape(), target.shape());
    return call(soft_margin_op, {input, target}, {.reduction = options.reduction},
                result_shape(name, shape, options.reduction));
}

}  // namespace mezzo
