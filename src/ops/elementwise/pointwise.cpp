// Element-wise functions of several tensors, and comparisons of floating numbers.
#include "kernels/pointwise.h"
#include "autograd/op_observer.h"
#include "mezzo/pointwise_ops.h"
#include "mezzo/reduce_ops.h"
#include "ops/common.h"

#include <cmath>

namespace mezzo {

namespace {

// In decompositions 16-bit inputs have been converted, so that only the result is rounded.
// From the nearer end, so that a weight of 1 gives b exactly.
const Op<kernels::Lerp> lerp_op{
    {.result = ResultDtype::promoted, .strided = true, .mixed = true}, nullptr, [](In in) -> Tensors {
        const Tensor &a = in[0], &b = in[1], &w = in[2], d = b - a;
        return {where(lt(abs(w), 0.5), a + w * d, b - (1.0 - w) * d)};
    }};
const Op<kernels::LerpScalar> lerp_scalar_op{
    {.result = ResultDtype::promoted, .strided = true, .mixed = true},
    nullptr,
    [](In in, const kernels::LerpScalar& at) -> Tensors {
        const Tensor d = in[1] - in[0];
        if (std::abs(at.weight) < 0.5) return {in[0] + at.weight * d};
        return {in[1] - (1 - at.weight) * d};
    }};
const Op<kernels::AddCMul> addcmul_op{{.cast = CastPolicy::promote, .result = ResultDtype::promoted},
                                      nullptr,
                                      [](In in, const kernels::AddCMul& at) -> Tensors {
                                          const Tensor product = in[1] * in[2];
                                          return {in[0] + (at.value == 1 ? product : product * at.value)};
                                      }};
const Op<kernels::AddCDiv> addcdiv_op{{.cast = CastPolicy::promote, .result = ResultDtype::promoted},
                                      nullptr,
                                      [](In in, const kernels::AddCDiv& at) -> Tensors {
                                          const Tensor quotient = in[1] / in[2];
                                          return {in[0] + (at.value == 1 ? quotient : quotient * at.value)};
                                      }};

// Gates of two tensors, or of the halves of one along a dimension. In 16 bit a factor would leave the range
// of the dtype though the product does not: the product of float32 factors is rounded once.
struct Operands {
    Tensor a, b;
};
Operands operands(In in, std::size_t first, int dim) {
    if (in.size() > first + 1) return {in[first], in[first + 1]};
    const Tensor& x = in[first];
    const std::int64_t n = x.size(dim);
    return {x.slice(dim, 0, n / 2), x.slice(dim, n / 2, n)};
}
// The results of the gradient's op for inputs g, a, b or g, x.
Tensors gate_gradients(In in, int dim, const Tensor& da, const Tensor& db) {
    if (in.size() == 2) return {cat({da, db}, dim)};
    return {da, db};
}
template <class Grad> Tensors gate_vjp(const Op<Grad>& op, const Node& c, int dim, const Tensor& g) {
    if (c.inputs.size() == 1) return {call(op, {g, c.in(0)}, {.dim = dim}, c.inputs[0].shape)};
    const Tensor given[] = {g, c.in(0), c.in(1)};
    const Shape shapes[] = {g.shape(), g.shape()};
    return call(op, given, {}, shapes);
}

const Op<kernels::GluGrad> glu_grad_op{{.result = ResultDtype::promoted, .strided = true, .mixed = true},
                                       nullptr,
                                       [](In in, const kernels::GluGrad& at) -> Tensors {
                                           const auto [a, b] = operands(in, 1, at.dim);
                                           const Tensor &g = in[0], s = sigmoid(b);
                                           return gate_gradients(in, at.dim, g * s,
                                                                 g * a * (s * sigmoid(-b)));
                                       }};
const Op<kernels::Glu> glu_op{{.result = ResultDtype::promoted, .strided = true, .mixed = true},
                              [](const Node& c, const kernels::Glu& at, const Tensors& g) -> Tensors {
                                  return gate_vjp(glu_grad_op, c, at.dim, g[0]);
                              },
                              [](In in, const kernels::Glu& at) -> Tensors {
                                  const auto [a, b] = operands(in, 0, at.dim);
                                  return {a * sigmoid(b)};
                              }};
const Op<kernels::SwiGluGrad> swiglu_grad_op{
    {.result = ResultDtype::promoted, .strided = true, .mixed = true},
    nullptr,
    [](In in, const kernels::SwiGluGrad& at) -> Tensors {
        const auto [gate, up] = operands(in, 1, at.dim);
        return gate_gradients(in, at.dim, silu_grad(in[0] * up, gate), in[0] * silu(gate));
    }};
const Op<kernels::SwiGlu> swiglu_op{
    {.result = ResultDtype::promoted, .strided = true, .mixed = true},
    [](const Node& c, const kernels::SwiGlu& at, const Tensors& g) -> Tensors {
        return gate_vjp(swiglu_grad_op, c, at.dim, g[0]);
    },
    [](In in, const kernels::SwiGlu& at) -> Tensors {
        const auto [gate, up] = operands(in, 0, at.dim);
        return {silu(gate) * up};
    }};

// The dtype of the three together; 0-dim tensors change it as in a + b.
Dtype dtype_of_three(CastPolicy cast, const Tensor& x, const Tensor& a, const Tensor& b) {
    const int dims = std::max(a.dim(), b.dim());
    const Dtype of_both =
        promote_operands(autocast_dtype(cast, a), a.dim(), autocast_dtype(cast, b), b.dim());
    return promote_operands(autocast_dtype(cast, x), x.dim(), of_both, dims);
}

template <class A> Tensor of_three(const Op<A>& op, const Tensor& x, const Tensor& a, const Tensor& b,
                                   const std::type_identity_t<A>& at) {
    const char* name = op.name();
    for (const Tensor& t : {x, a, b}) check_floating(name, t);
    const Shape shape = broadcast_shapes(name, x.shape(), broadcast_shapes(name, a.shape(), b.shape()));
    return call(op, {x, a, b}, at, shape, dtype_of_three(op.traits().cast, x, a, b));
}

// The gate of the halves of x.
template <class A> Tensor of_halves(const Op<A>& op, const Tensor& x, std::int64_t dim) {
    const char* name = op.name();
    check_floating(name, x);
    check(x.dim() > 0, ErrorKind::shape, name, ": a 0-dim tensor has no halves");
    const int d = wrap_dim(name, dim, x.dim());
    check(x.size(d) % 2 == 0, ErrorKind::shape, name, ": dimension ", d, " of ", x.shape(), " has no halves");
    Shape shape = x.shape();
    shape[d] /= 2;
    return call(op, {x}, {.dim = d}, shape);
}

}  // namespace

Tensor isnan(const Tensor& x) {
    const CompositeOp here("isnan");
    check_defined("isnan", x);
    return ne(x, x);
}

Tensor isinf(const Tensor& x) {
    const CompositeOp here("isinf");
    check_defined("isinf", x);
    if (!is_floating(x.dtype())) return zeros(x.shape(), {.dtype = boolean, .device = x.device()});
    return eq(abs(x), INFINITY);
}

Tensor nan_to_num(const Tensor& x, const NanToNumOptions& options) {
    const CompositeOp here("nan_to_num");
    check_defined("nan_to_num", x);
    if (!is_floating(x.dtype())) return x.clone();
    const double most = dtype_info(x.dtype()).max;
    const Tensor y = masked_fill(x, isnan(x), options.nan);
    const Tensor z = masked_fill(y, eq(x, INFINITY), options.posinf.value_or(most));
    return masked_fill(z, eq(x, -INFINITY), options.neginf.value_or(-most));
}

Tensor logical_xor(const Tensor& a, const Tensor& b) {
    const CompositeOp here("logical_xor");
    return ne(logical_not(a), logical_not(b));
}

// In float64, so that neither the difference nor the tolerance is rounded to 16 bit.
Tensor isclose(const Tensor& given_a, const Tensor& given_b, IsCloseOptions options) {
    const CompositeOp here("isclose");
    check_defined("isclose", given_a);
    check_defined("isclose", given_b);
    check(options.rtol >= 0 && options.atol >= 0, ErrorKind::value, "isclose: rtol ", options.rtol,
          " and atol ", options.atol, "; neither may be negative");
    const Tensor a = cast(given_a.detach(), float64), b = cast(given_b.detach(), float64);
    Tensor apart = abs(a - b);
    if (!is_floating(given_a.dtype()) && !is_floating(given_b.dtype())) {  // exact beyond 2^53, too
        const Tensor x = cast(given_a.detach(), int64), y = cast(given_b.detach(), int64);
        apart = where(ne(lt(x, 0), lt(y, 0)), apart, cast(where(ge(x, y), x - y, y - x), float64));
    }
    const Tensor near = le(apart, options.atol + options.rtol * abs(b));
    const Tensor close = logical_or(eq(given_a, given_b), logical_and(isfinite(apart), near));
    return options.equal_nan ? logical_or(close, logical_and(isnan(a), isnan(b))) : close;
}

bool equal(const Tensor& a, const Tensor& b) {
    const CompositeOp here("equal");
    check_defined("equal", a, any_dtype);
    check_defined("equal", b, any_dtype);
    const auto comparable = [](const Tensor& x) { return is_storage_only(x.dtype()) ? cast(x, float32) : x; };
    return a.shape() == b.shape() && all(eq(comparable(a), comparable(b))).item<bool>();
}

Tensor lerp(const Tensor& a, const Tensor& b, const Tensor& weight) {
    return of_three(lerp_op, a, b, weight, {});
}
Tensor lerp(const Tensor& a, const Tensor& b, double weight) {
    check_floating("lerp", a);
    check_floating("lerp", b);
    return call(lerp_scalar_op, {a, b}, {.weight = weight}, broadcast_shapes("lerp", a.shape(), b.shape()),
                promote_operands(a.dtype(), a.dim(), b.dtype(), b.dim()));
}
Tensor addcmul(const Tensor& x, const Tensor& a, const Tensor& b, double value) {
    return of_three(addcmul_op, x, a, b, {.value = value});
}
Tensor addcdiv(const Tensor& x, const Tensor& a, const Tensor& b, double value) {
    return of_three(addcdiv_op, x, a, b, {.value = value});
}

Tensor glu(const Tensor& x, std::int64_t dim) { return of_halves(glu_op, x, dim); }
Tensor swiglu(const Tensor& gate, const Tensor& up) {
    check_floating("swiglu", gate, "gate");
    check_floating("swiglu", up, "up");
    return call(swiglu_op, {gate, up}, {}, broadcast_shapes("swiglu", gate.shape(), up.shape()),
                promote_operands(gate.dtype(), gate.dim(), up.dtype(), up.dim()));
}
Tensor swiglu(const Tensor& x, std::int64_t dim) { return of_halves(swiglu_op, x, dim); }

}  // namespace mezzo
