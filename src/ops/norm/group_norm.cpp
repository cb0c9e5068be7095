// group_norm: the op, its gradient, and the public function.
#include "kernels/batch_norm.h"
#include "mezzo/image_ops.h"
#include "ops/norm/norm_common.h"

namespace mezzo {

namespace {

// x [N, pixels, C] as [N, pixels, groups, C / groups].
Tensor grouped(const Tensor& x, std::int64_t groups) {
    return x.reshape({x.size(0), x.size(1), groups, x.size(2) / groups});
}
Tensor group_mean(const Tensor& x) { return mean(x, {1, 3}, keep_dims()); }

struct Normalised {
    Tensor x, rstd;
};
Normalised normalised(const Tensor& x, double eps) {
    const Tensor c = x - group_mean(x), rstd = rsqrt(group_mean(square(c)) + eps);
    return {c * rstd, rstd};
}

Tensors group_norm_decomposition(In in, const kernels::GroupNorm& at) {
    const Normalised n = normalised(grouped(in[0], at.groups), at.eps);
    return {n.x.reshape(in[0].shape()) * in[1] + in[2]};
}

// The inputs mean and rstd are functions of x. They are not read here, so that the derivative of this
// function by x is complete.
Tensors group_norm_grad_decomposition(In in, const kernels::GroupNormGrad& at) {
    const Tensor g = in[0], x = in[1];
    const Normalised n = normalised(grouped(x, at.groups), at.eps);
    const Tensor gw = grouped(g * in[2], at.groups);
    const Tensor dx = n.rstd * (gw - group_mean(gw) - n.x * group_mean(gw * n.x));
    return {dx.reshape(x.shape()), sum(g * n.x.reshape(x.shape()), {0, 1}), sum(g, {0, 1})};
}

const Op<kernels::GroupNormGrad> group_norm_grad_op{
    {.name = "group_norm_grad", .mixed = true, .first_float32_result = 1},
    nullptr,
    group_norm_grad_decomposition};

Tensors group_norm_vjp(const Node& c, const kernels::GroupNorm& at, const Tensors& g) {
    const Shape &vector = c.inputs[1].shape, shapes[] = {c.inputs[0].shape, vector, vector};
    return call(group_norm_grad_op, Tensors{g[0], c.in(0), c.in(1), c.out(1).detach(), c.out(2).detach()},
                {.groups = at.groups, .eps = at.eps}, shapes, c.grad_dtype(0));
}

const Op<kernels::GroupNorm> group_norm_op{{.name = "group_norm",
                                            .cast = CastPolicy::fp32_out,
                                            .saves = save_first | save_second | save_statistics,
                                            .mixed = true,
                                            .first_float32_result = 1},
                                           group_norm_vjp,
                                           group_norm_decomposition};

}  // namespace

Tensor group_norm(const Tensor& x, std::int64_t groups, const Tensor& weight, const Tensor& bias,
                  double eps) {
    const char* op = "group_norm";
    check_floating(op, x);
    check(x.dim() >= 2, ErrorKind::shape, op, ": input ", x.shape(), " is not [batch, ..., channels]");
    check_eps(op, eps);
    const std::int64_t batch = x.size(0), channels = x.size(-1);
    check(groups > 0 && channels > 0 && channels % groups == 0, ErrorKind::value, op, ": ", groups,
          " groups do not divide ", channels, " channels");
    const Tensor w = row_vector(op, "weight", weight, x, 1), b = row_vector(op, "bias", bias, x, 0);
    std::int64_t pixels = 1;
    for (int d = 1; d + 1 < x.dim(); ++d) pixels *= x.size(d);
    const Tensor images = x.reshape({batch, pixels, channels});
    const Shape per_group{batch, groups}, shapes[] = {images.shape(), per_group, per_group};
    const std::size_t results = recording(x, w, b) ? 3 : 1;
    return call(group_norm_op, Tensors{images, w, b}, {.groups = groups, .eps = eps},
                std::span(shapes, results))[0]
        .reshape(x.shape());
}

}  // namespace mezzo
