// Dropouts. The mask of dropout() is recomputed from the offset in the random stream and never stored; the
// others fill where dropout() of ones is 0.
#include "ops/elementwise/dropout.h"

#include <cmath>

#include "autograd/op_observer.h"
#include "kernels/random.h"
#include "mezzo/image_ops.h"
#include "ops/pool/image.h"

namespace mezzo {

namespace {

// The op is linear in x and its own transpose: its gradient is the same dropout of g.
const Op<kernels::Dropout> dropout_op{
    {.name = "dropout", .saves = save_none},
    [](const Node&, const kernels::Dropout& at, const Tensors& g) -> Tensors {
        return {dropout_at(g[0], at.p, at.stream)};
    }};

void check_probability(const char* op, const Tensor& x, double p) {
    check_floating(op, x);
    check(p >= 0 && p <= 1, ErrorKind::value, op, ": p ", p, " is outside [0, 1]");
}

Tensor all_zero(const Tensor& x) {
    return masked_fill(x, ones({}, {.dtype = boolean, .device = x.device()}), 0);
}

// True with probability p, of the given shape.
Tensor dropped(const Shape& shape, double p, Device device) {
    NoGrad plain;
    return eq(dropout(ones(shape, {.device = device}), p), 0);
}

// One number for each channel of each sample of x [N, ..., C].
Shape per_channel(const Tensor& x) {
    Shape shape = Shape::filled(x.dim(), 1);
    shape[0] = x.size(0);
    shape.back() = x.size(-1);
    return shape;
}

Tensor channel_dropout(const char* op, const Tensor& x, int dims, double p, bool training) {
    const CompositeOp here(op);
    check_probability(op, x, p);
    check(x.dim() == dims, ErrorKind::shape, op, ": input ", x.shape(), " has ", x.dim(), " dimensions, not ",
          dims, missing_dimension_hint(x.dim(), dims));
    if (!training || p == 0) return x;
    if (p == 1) return all_zero(x);
    return masked_fill(x, dropped(per_channel(x), p, x.device()), 0) * (1 / (1 - p));
}

// a (x, or -alpha where it is dropped) + b, with alpha = lambda alpha of SELU, and a and b such that mean 0
// and variance 1 stay (equation 6 of the paper, and the one before it).
Tensor alpha_dropped(const Tensor& x, const Shape& mask, double p, bool training) {
    if (!training || p == 0) return x;
    if (p == 1) return all_zero(x);
    constexpr double alpha = 1.7580993408473766;
    const double a = 1 / std::sqrt((1 - p) * (1 + p * alpha * alpha));
    return cast(masked_fill(widened(x), dropped(mask, p, x.device()), -alpha) * a + a * alpha * p, x.dtype());
}

}  // namespace

void check_dropout(const char* op, double p) {
    check(p >= 0 && p < 1, ErrorKind::value, op, ": dropout probability ", p, " is outside [0, 1)");
}

Tensor dropout_at(const Tensor& x, double p, const RandomState& stream) {
    return p > 0 ? call(dropout_op, {x}, {.p = p, .stream = stream}, x.shape()) : x;
}

Tensor dropout(const Tensor& x, double p, bool training) {
    check_probability("dropout", x, p);
    if (!training || p == 0) return x;
    if (p == 1) return all_zero(x);
    return with_dropout_stream(x.numel(),
                               [&](const RandomState& stream) { return dropout_at(x, p, stream); });
}

Tensor dropout1d(const Tensor& x, double p, bool training) {
    return channel_dropout("dropout1d", x, 3, p, training);
}
Tensor dropout2d(const Tensor& x, double p, bool training) {
    return channel_dropout("dropout2d", x, 4, p, training);
}
Tensor dropout3d(const Tensor& x, double p, bool training) {
    return channel_dropout("dropout3d", x, 5, p, training);
}

Tensor alpha_dropout(const Tensor& x, double p, bool training) {
    const CompositeOp here("alpha_dropout");
    check_probability("alpha_dropout", x, p);
    return alpha_dropped(x, x.shape(), p, training);
}

Tensor feature_alpha_dropout(const Tensor& x, double p, bool training) {
    const CompositeOp here("feature_alpha_dropout");
    check_probability("feature_alpha_dropout", x, p);
    check(x.dim() >= 2, ErrorKind::shape, "feature_alpha_dropout: input ", x.shape(),
          " is not [batch, ..., channels]");
    return alpha_dropped(x, per_channel(x), p, training);
}

}  // namespace mezzo
