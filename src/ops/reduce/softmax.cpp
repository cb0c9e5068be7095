// softmax and log_softmax along one dimension.
#include "kernels/softmax.h"
#include "autograd/op_observer.h"
#include "mezzo/reduce_ops.h"
#include "ops/common.h"

namespace mezzo {

namespace {

Tensor sum_along(const Tensor& x, std::int64_t dim) { return sum(x, {dim}, keep_dims()); }

// y = softmax(x): dx = y (g - sum(g y)).
const Op<kernels::SoftmaxGrad> softmax_grad_op{{.name = "softmax_grad", .result = ResultDtype::promoted},
                                               nullptr,
                                               [](In in, const kernels::SoftmaxGrad& at) -> Tensors {
                                                   const Tensor &g = in[0], &y = in[1];
                                                   return {y * (g - sum_along(g * y, at.dim))};
                                               }};

// y = log_softmax(x): dx = g - exp(y) sum(g), written so that nothing cancels where exp(y) rounds to 1.
const Op<kernels::LogSoftmaxGrad> log_softmax_grad_op{
    {.name = "log_softmax_grad", .result = ResultDtype::promoted},
    nullptr,
    [](In in, const kernels::LogSoftmaxGrad& at) -> Tensors {
        const Tensor &g = in[0], &y = in[1];
        return {-(g * expm1(y)) - exp(y) * (sum_along(g, at.dim) - g)};
    }};

// The kernel returns the gradient in the dtype of x, which may be 16 bit although autocast made y float32.
template <class A> Tensor row_grad(const Op<A>& op, const Node& c, std::int64_t dim, const Tensor& g) {
    return call(op, {g, c.out()}, {.dim = dim}, g.shape(), c.grad_dtype(0));
}

// x minus its maximum, which cancels in both functions and keeps exp from overflowing.
Tensor shifted(const Tensor& x, std::int64_t dim) { return x - max(x, {dim}, keep_dims()).detach(); }

const Op<kernels::Softmax> softmax_op{
    {.name = "softmax", .cast = CastPolicy::fp32_out, .saves = save_outputs},
    [](const Node& c, const kernels::Softmax& at, const Tensors& g) -> Tensors {
        return {row_grad(softmax_grad_op, c, at.dim, g[0])};
    },
    [](In in, const kernels::Softmax& at) -> Tensors {
        const Tensor e = exp(shifted(in[0], at.dim));
        return {e / sum_along(e, at.dim)};
    }};

const Op<kernels::LogSoftmax> log_softmax_op{
    {.name = "log_softmax", .cast = CastPolicy::fp32_out, .saves = save_outputs},
    [](const Node& c, const kernels::LogSoftmax& at, const Tensors& g) -> Tensors {
        return {row_grad(log_softmax_grad_op, c, at.dim, g[0])};
    },
    [](In in, const kernels::LogSoftmax& at) -> Tensors {
        const Tensor x = shifted(in[0], at.dim);
        return {x - log(sum_along(exp(x), at.dim))};
    }};

template <class A>
Tensor along(const Op<A>& op, const Tensor& x, std::int64_t dim, std::optional<Dtype> dtype = {}) {
    const char* name = op.name();
    check_floating(name, x);
    const int d = wrap_dim(name, dim, x.dim());
    if (x.dim() == 0) return along(op, x.reshape({1}), 0, dtype).reshape({});
    return call(op, {x}, {.dim = d}, x.shape(), dtype);
}

// Runs the op with a result of `dtype`. The kernels write float32 for 16 bit; otherwise x is converted if its
// dtype differs.
template <class A> Tensor in_dtype(const Op<A>& op, const Tensor& x, std::int64_t dim, Dtype dtype) {
    check_defined(op.name(), x);
    check(is_floating(dtype), ErrorKind::dtype, op.name(), ": the result's dtype ", dtype,
          " is not floating");
    return along(op, is_16bit(x.dtype()) && dtype == float32 ? x : cast(x, dtype), dim, dtype);
}

}  // namespace

Tensor softmax(const Tensor& x, std::int64_t dim) { return along(softmax_op, x, dim); }
Tensor log_softmax(const Tensor& x, std::int64_t dim) { return along(log_softmax_op, x, dim); }
Tensor softmax(const Tensor& x, std::int64_t dim, Dtype dtype) { return in_dtype(softmax_op, x, dim, dtype); }
Tensor log_softmax(const Tensor& x, std::int64_t dim, Dtype dtype) {
    return in_dtype(log_softmax_op, x, dim, dtype);
}
Tensor softmin(const Tensor& x, std::int64_t dim) {
    const CompositeOp here("softmin");
    check_floating("softmin", x);
    return softmax(-x, dim);
}

}  // namespace mezzo
