// Products, variances, standard deviations, argmin, and counts of elements that are not 0.
#include "kernels/moments.h"
#include "autograd/op_observer.h"
#include "kernels/reduce.h"
#include "mezzo/reduce_ops.h"
#include "ops/common.h"
#include "ops/vjp_helpers.h"

#include <algorithm>

namespace mezzo {

namespace {

Tensors prod_vjp(const Node& c, const kernels::Prod& at, const Tensors& g);

const Op<kernels::Prod> prod_op{{.name = "prod", .cast = CastPolicy::fp32_out, .mixed = true}, prod_vjp};

// The axes that are not in `axes`, and then those.
Axes reduced_last(const Axes& axes, int dims) {
    Axes order;
    for (int d = 0; d < dims; ++d)
        if (std::find(axes.begin(), axes.end(), d) == axes.end()) order.push_back(d);
    for (const std::int64_t axis : axes) order.push_back(axis);
    return order;
}

// The product of all others, for each element: of those before and those after it. A division by the element
// would fail for 0.
Tensors prod_vjp(const Node& c, const kernels::Prod& at, const Tensors& g) {
    const Tensor given = c.in(0);
    const Axes order = reduced_last(at.axes, given.dim());
    Axes back = order;
    for (int d = 0; d < order.size(); ++d) back[int(order[d])] = d;
    const Tensor moved = wide(given).permute(order);
    const Shape kept(moved.shape().begin(), given.dim() - at.axes.size());
    const std::int64_t count = count_along(given.shape(), at.axes);
    if (given.numel() == 0) return {zeros_like(given)};
    const Tensor x = moved.reshape({kept.numel(), count});
    const Tensor others = exclusive_cumprod(x, 1, false) * exclusive_cumprod(x, 1, true);
    const Tensor grad = wide(g[0]).reshape({kept.numel(), 1}) * others;
    return {grad.reshape(moved.shape()).permute(back)};
}

double freedom(const Shape& shape, const Axes& axes, double correction) {
    return std::max(double(count_along(shape, axes)) - correction, 0.0);
}

// g times the gradient of the variance: 2 (x - mean) / freedom.
template <class A> Tensor variance_vjp(const Node& c, const A& at, const Tensor& g) {
    const Tensor x = wide(c.in(0));
    const Tensor slope =
        (x - mean(x, at.axes, keep_dims())) * (2 / freedom(x.shape(), at.axes, at.correction));
    return with_kept_dims(g, x.shape(), at.axes) * slope;
}

Tensor variance(const Tensor& x, const kernels::Var& at) {
    const Tensor squares = square(x - mean(x, at.axes, keep_dims()));
    return sum(squares, at.axes, {.keepdim = at.keepdim}) / freedom(x.shape(), at.axes, at.correction);
}

const Op<kernels::Var> var_op{{.name = "var", .mixed = true},
                              [](const Node& c, const kernels::Var& at, const Tensors& g) -> Tensors {
                                  return {variance_vjp(c, at, wide(g[0]))};
                              },
                              [](In in, const kernels::Var& at) -> Tensors { return {variance(in[0], at)}; }};

// The variance itself may leave the range of 16 bit, and the root of a small one has few digits.
const Op<kernels::Std> std_op{
    {.name = "std", .mixed = true},
    [](const Node& c, const kernels::Std& at, const Tensors& g) -> Tensors {
        const Tensor x = wide(c.in(0));
        const Tensor y = std(x, at.axes, {.keepdim = true, .correction = at.correction});
        const Tensor kept = with_kept_dims(wide(g[0]), x.shape(), at.axes);
        return {
            variance_vjp(c, at, masked_fill(kept / (2.0 * masked_fill(y, eq(y, 0.0), 1)), eq(y, 0.0), 0))};
    },
    [](In in, const kernels::Std& at) -> Tensors {
        return {sqrt(variance(in[0], {.axes = at.axes, .correction = at.correction, .keepdim = at.keepdim}))};
    }};

template <class A>
Tensor moment(const Op<A>& op, const Tensor& x, const Axes& axes, const VarOptions& options) {
    const char* name = op.name();
    check_floating(name, x);
    const A at{.axes = normal_axes(name, axes, x.dim()),
               .correction = options.correction,
               .keepdim = options.keepdim};
    return call(op, {x}, at, reduced_shape(x.shape(), at.axes, options.keepdim));
}

}  // namespace

Tensor prod(const Tensor& given, const Axes& axes, ReduceOptions options) {
    check_defined("prod", given);
    const bool asked = options.explicit_dtype;
    if (asked) check_computes("prod", options.dtype);
    const Tensor x = asked ? cast(given, options.dtype) : given;
    std::optional<Dtype> dtype;
    if (asked) dtype = options.dtype;
    if (!asked && !is_floating(x.dtype())) dtype = int64;
    const kernels::Prod at{.axes = normal_axes("prod", axes, x.dim())};
    return call(prod_op, {x}, at, reduced_shape(x.shape(), at.axes, options.keepdim), dtype);
}

Tensor var(const Tensor& x, const Axes& axes, VarOptions options) { return moment(var_op, x, axes, options); }
Tensor std(const Tensor& x, const Axes& axes, VarOptions options) { return moment(std_op, x, axes, options); }
VarMean var_mean(const Tensor& x, const Axes& axes, VarOptions options) {
    const CompositeOp here("var_mean");
    return {var(x, axes, options), mean(x, axes, {.keepdim = options.keepdim})};
}
StdMean std_mean(const Tensor& x, const Axes& axes, VarOptions options) {
    const CompositeOp here("std_mean");
    return {std(x, axes, options), mean(x, axes, {.keepdim = options.keepdim})};
}

Tensor count_nonzero(const Tensor& x, const Axes& axes, KeepdimOptions options) {
    const CompositeOp here("count_nonzero");
    check_defined("count_nonzero", x);
    return sum(x.dtype() == boolean ? x : ne(x, 0.0), axes, {.keepdim = options.keepdim});
}
Tensor any(const Tensor& x, const Axes& axes, KeepdimOptions options) {
    const CompositeOp here("any");
    check_defined("any", x);
    return ne(count_nonzero(x, axes, options), 0.0);
}
Tensor all(const Tensor& x, const Axes& axes, KeepdimOptions options) {
    const CompositeOp here("all");
    check_defined("all", x);
    return eq(count_nonzero(logical_not(x), axes, options), 0.0);
}

}  // namespace mezzo
