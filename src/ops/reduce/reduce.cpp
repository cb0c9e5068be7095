// Reductions over axes, argmax, and the sums that undo broadcasting.
#include <cmath>

#include "autograd/op_observer.h"
#include "kernels/reduce.h"
#include "mezzo/pointwise_ops.h"
#include "mezzo/reduce_ops.h"
#include "ops/common.h"
#include "ops/gemm/products.h"
#include "ops/vjp_helpers.h"

namespace mezzo {

namespace {

// g repeated along the axes that the op reduced.
Tensor spread(const Node& c, const Axes& axes, const Tensor& g) {
    return with_kept_dims(g, c.inputs[0].shape, axes).expand(c.inputs[0].shape);
}

template <class A> Tensors extremum_vjp(const Node& c, const A& at, const Tensors& g);

const Op<kernels::Sum> sum_op{
    {.name = "sum", .cast = CastPolicy::fp32_out, .saves = save_none, .mixed = true},
    [](const Node& c, const kernels::Sum& at, const Tensors& g) -> Tensors {
        return {spread(c, at.axes, g[0])};
    }};

const Op<kernels::Mean> mean_op{
    {.name = "mean", .saves = save_none},
    [](const Node& c, const kernels::Mean& at, const Tensors& g) -> Tensors {
        return {spread(c, at.axes, g[0] / double(count_along(c.inputs[0].shape, at.axes)))};
    },
    [](In in, const kernels::Mean& at) -> Tensors {
        const double count = double(count_along(in[0].shape(), at.axes));
        return {sum(in[0], at.axes, {.keepdim = at.keepdim}) / count};
    }};

const Op<kernels::Max> max_op{{.name = "max", .saves = save_inputs | save_outputs},
                              extremum_vjp<kernels::Max>};

const Op<kernels::Min> min_op{{.name = "min", .saves = save_inputs | save_outputs},
                              extremum_vjp<kernels::Min>,
                              [](In in, const kernels::Min& at) -> Tensors {
                                  return {-max(-in[0], at.axes, {.keepdim = at.keepdim})};
                              }};

// Inputs g, x, y: g where x equals the extremum y, divided by the number of such elements; NaN where y is
// NaN, so that the loss scaler sees it. The op is linear in g; x and y only select, so they have no gradient.
const Op<kernels::AmaxGrad> amax_grad_op{
    {.name = "amax_grad"},
    [](const Node& c, const kernels::AmaxGrad& at, const Tensors& g) -> Tensors {
        if (!c.needs(0)) return {Tensor(), Tensor(), Tensor()};
        const Tensor chosen = cast(eq(c.in(1), c.in(2)), g[0].dtype());
        const Tensor ties = sum(chosen, at.axes, keep_dims());
        return {sum(g[0] * chosen, at.axes, keep_dims()) / ties, Tensor(), Tensor()};
    },
    [](In in, const kernels::AmaxGrad& at) -> Tensors {
        const Tensor chosen = cast(eq(in[1], in[2]), in[0].dtype());
        return {chosen * (in[0] / sum(chosen, at.axes, keep_dims()))};
    }};

template <class A> Tensors extremum_vjp(const Node& c, const A& at, const Tensors& g) {
    const Shape& shape = c.inputs[0].shape;
    const Tensor kept_g = with_kept_dims(g[0], shape, at.axes),
                 kept_y = with_kept_dims(c.out(), shape, at.axes);
    return {call(amax_grad_op, {kept_g, c.in(0), kept_y}, {.axes = at.axes}, shape)};
}

// d sqrt(sum x^2) / dx = x / y; a zero norm means x == 0, where dividing by 1 instead gives 0.
const Op<kernels::Norm> norm_op{
    {.name = "norm", .cast = CastPolicy::fp32_out, .saves = save_inputs | save_outputs, .mixed = true},
    [](const Node& c, const kernels::Norm& at, const Tensors& g) -> Tensors {
        const Shape& shape = c.inputs[0].shape;
        // A small norm has few digits left in 16 bit, or none: it is computed anew in float32.
        const bool again = is_16bit(c.outputs[0].dtype);
        const ReduceOptions kept{.keepdim = true, .explicit_dtype = true};
        const Tensor y = again ? norm(c.in(0), at.axes, kept) : with_kept_dims(c.out(), shape, at.axes);
        const Tensor direction = wide(c.in(0)) / masked_fill(y, eq(y, 0.0), 1);
        return {with_kept_dims(g[0], shape, at.axes) * direction};
    },
    [](In in, const kernels::Norm& at) -> Tensors {
        return {sqrt(sum(square(in[0]), at.axes, {.keepdim = at.keepdim}))};
    }};

struct LogSumExp {
    static constexpr const char* name = "logsumexp";
    Axes axes = {};
    bool keepdim = false;
};

// The largest x limited to finite numbers, or 0 if there is none. x minus it is never NaN and, unless x is
// infinite, not above 0, so that the exponentials of finite elements stay finite next to an infinity.
Tensor finite_max(const Tensor& x, const Axes& axes) {
    NoGrad plain;
    if (x.numel() == 0)
        return zeros(reduced_shape(x.shape(), axes, true), {.dtype = x.dtype(), .device = x.device()});
    const double most = dtype_info(x.dtype()).max;
    return clamp(max(x, axes, keep_dims()), -most, most);
}

// m + ln(sum e^(x - m)). A sum of 0 is replaced before the logarithm, which makes its gradient 0.
const Op<LogSumExp> logsumexp_op{
    {.name = "logsumexp", .cast = CastPolicy::fp32_out, .saves = save_none},
    nullptr,
    [](In in, const LogSumExp& at) -> Tensors {
        const Tensor m = finite_max(in[0], at.axes);
        const Tensor total = sum(exp(in[0] - m), at.axes, keep_dims()), none = eq(total, 0.0);
        const Tensor y = masked_fill(log(masked_fill(total, none, 1)), none, -INFINITY) + m;
        return {y.reshape(reduced_shape(in[0].shape(), at.axes, at.keepdim))};
    }};

const Op<kernels::ArgMax> argmax_op{
    {.name = "argmax", .saves = save_none, .result = ResultDtype::indices, .differentiable = false}};

// argmin is argmax of -x, or of -1 - x for integers, which does not overflow.
const Op<kernels::ArgMin> argmin_op{
    {.name = "argmin", .saves = save_none, .result = ResultDtype::indices, .differentiable = false},
    nullptr,
    [](In in, const kernels::ArgMin& at) -> Tensors {
        const Tensor& x = in[0];
        return {argmax(is_floating(x.dtype()) ? -x : -1.0 - cast(x, int64), at.dim)};
    }};

// [rows, cols] -> [cols]: the gradient of a bias.
const Op<kernels::ColumnSum> column_sum_op{
    {.name = "column_sum", .saves = save_none, .mixed = true},
    [](const Node& c, const Tensors& g) -> Tensors { return {g[0].unsqueeze(0).expand(c.inputs[0].shape)}; },
    [](In in) -> Tensors { return {sum(in[0], {0})}; }};

// Kernels return the input's dtype, or float32 for a 16-bit input. Any other dtype takes a cast: before the
// reduction if it is wider, after it if it is narrower.
Tensor reduce(const AnyOp& op, const Tensor& x, const AttributesRef& at, const Shape& shape,
              const ReduceOptions& options) {
    const auto run = [&](const Tensor& from, std::optional<Dtype> dtype) {
        return call_one(op, In(&from, 1), at, shape, dtype);
    };
    if (!options.explicit_dtype) return run(x, {});
    const Dtype wanted = options.dtype;
    check(is_floating(wanted), ErrorKind::dtype, op.name(), ": the result's dtype ", wanted,
          " is not floating");
    if (x.dtype() == wanted || (is_16bit(x.dtype()) && wanted == float32)) return run(x, wanted);
    if (promote(x.dtype(), wanted) == wanted) return run(cast(x, wanted), wanted);
    return cast(run(x, is_16bit(x.dtype()) ? float32 : x.dtype()), wanted);
}

template <class A>
Tensor reduce(const Op<A>& op, const Tensor& x, const Axes& axes, const ReduceOptions& options) {
    A at{.axes = normal_axes(op.name(), axes, x.dim())};
    if constexpr (requires { at.keepdim; }) at.keepdim = options.keepdim;
    return reduce(op, x, at, reduced_shape(x.shape(), at.axes, options.keepdim), options);
}

template <class A>
Tensor extremum(const Op<A>& op, const Tensor& x, const Axes& axes, const ReduceOptions& options) {
    const char* name = op.name();
    check_defined(name, x);
    check(x.dtype() != boolean, ErrorKind::dtype, name, ": input is boolean; convert it with to()");
    const Axes all = normal_axes(name, axes, x.dim());
    for (std::int64_t axis : all)
        check(x.size(axis) > 0, ErrorKind::shape, name, ": dimension ", axis, " of ", x.shape(),
              " is empty, and the ", name, " of nothing is undefined");
    if (options.explicit_dtype) check_computes(name, options.dtype);
    if (options.explicit_dtype)
        return cast(extremum(op, x, axes, {.keepdim = options.keepdim}), options.dtype);
    return reduce(op, x, axes, options);
}

template <class A> Tensor arg_extremum(const Op<A>& op, const Tensor& x, KeepdimOptions options) {
    const char* name = op.name();
    check_defined(name, x);
    check(x.numel() > 0, ErrorKind::shape, name, ": ", x.shape(), " is empty");
    NoGrad plain;  // the view needs no node
    const Tensor index = call(op, {x.reshape({x.numel()})}, {.dim = 0}, Shape{});
    return options.keepdim ? index.reshape(Shape::filled(x.dim(), 1)) : index;
}
template <class A>
Tensor arg_extremum(const Op<A>& op, const Tensor& x, std::int64_t dim, KeepdimOptions options) {
    const char* name = op.name();
    check_defined(name, x);
    const int d = wrap_dim(name, dim, x.dim());
    if (x.dim() == 0) return arg_extremum(op, x, {});
    check(x.size(d) > 0, ErrorKind::shape, name, ": dimension ", d, " of ", x.shape(), " is empty");
    const Shape shape = reduced_shape(x.shape(), {d}, options.keepdim);
    return call(op, {x}, {.dim = d}, shape).reshape(shape);  // a decomposition does not keep the dimension
}

}  // namespace

Tensor sum(const Tensor& x, const Axes& axes, ReduceOptions options) {
    check_defined("sum", x);
    if (options.explicit_dtype) check_computes("sum", options.dtype);
    if (is_floating(x.dtype())) return reduce(sum_op, x, axes, options);
    if (options.explicit_dtype && is_floating(options.dtype))
        return sum(cast(x, options.dtype), axes, options);
    const kernels::Sum at{.axes = normal_axes("sum", axes, x.dim())};
    const Tensor y = call(sum_op, {x}, at, reduced_shape(x.shape(), at.axes, options.keepdim), int64);
    return options.explicit_dtype ? cast(y, options.dtype) : y;
}

Tensor mean(const Tensor& x, const Axes& axes, ReduceOptions options) {
    check_defined("mean", x);
    if (options.explicit_dtype && is_floating(options.dtype) && !is_floating(x.dtype()))
        return mean(cast(x, options.dtype), axes, options);
    check_floating("mean", x);
    return reduce(mean_op, x, axes, options);
}

Tensor nansum(const Tensor& x, const Axes& axes, ReduceOptions options) {
    const CompositeOp here("nansum");
    check_defined("nansum", x);
    return sum(is_floating(x.dtype()) ? masked_fill(x, isnan(x), 0) : x, axes, options);
}

// 16-bit sums stay in float32 until they are divided.
Tensor nanmean(const Tensor& x, const Axes& axes, ReduceOptions options) {
    const CompositeOp here("nanmean");
    check_floating("nanmean", x);
    const Dtype dtype = options.explicit_dtype ? options.dtype : x.dtype();
    const Tensor valid = logical_not(isnan(x));
    const ReduceOptions wide{
        .keepdim = options.keepdim, .dtype = is_16bit(dtype) ? float32 : dtype, .explicit_dtype = true};
    return cast(nansum(x, axes, wide) / sum(valid, axes, {.keepdim = options.keepdim}), dtype);
}

Tensor max(const Tensor& x, const Axes& axes, ReduceOptions options) {
    return extremum(max_op, x, axes, options);
}
Tensor min(const Tensor& x, const Axes& axes, ReduceOptions options) {
    return extremum(min_op, x, axes, options);
}

Tensor norm(const Tensor& x, const Axes& axes, ReduceOptions options) {
    check_floating("norm", x);
    return reduce(norm_op, x, axes, options);
}

Tensor logsumexp(const Tensor& x, const Axes& axes, ReduceOptions options) {
    check_floating("logsumexp", x);
    return reduce(logsumexp_op, x, axes, options);
}

Tensor argmax(const Tensor& x, KeepdimOptions options) { return arg_extremum(argmax_op, x, options); }
Tensor argmax(const Tensor& x, std::int64_t dim, KeepdimOptions options) {
    return arg_extremum(argmax_op, x, dim, options);
}
Tensor argmin(const Tensor& x, KeepdimOptions options) { return arg_extremum(argmin_op, x, options); }
Tensor argmin(const Tensor& x, std::int64_t dim, KeepdimOptions options) {
    return arg_extremum(argmin_op, x, dim, options);
}

Tensor sum_to(const Tensor& x, const Shape& shape) {
    const CompositeOp here("sum_to");
    check_defined("sum_to", x);
    if (x.shape() == shape) return x;
    check(shape.size() <= x.dim() && broadcast_shapes("sum_to", shape, x.shape()) == x.shape(),
          ErrorKind::shape, "sum_to: ", shape, " does not broadcast to ", x.shape());
    const int added = x.dim() - shape.size();
    Axes axes;
    for (int d = 0; d < x.dim(); ++d)
        if (d < added || (shape[d - added] == 1 && x.size(d) != 1)) axes.push_back(d);
    const ReduceOptions same{.keepdim = true, .dtype = x.dtype(), .explicit_dtype = is_floating(x.dtype())};
    return axes.empty() ? x.reshape(shape) : sum(x, axes, same).reshape(shape);
}

// Declared in ops/gemm/products.h: the sum over rows in `dtype`.
Tensor column_sum(const Tensor& x, Dtype dtype) {
    return call(column_sum_op, {x}, {}, Shape{x.size(1)}, dtype);
}

}  // namespace mezzo
