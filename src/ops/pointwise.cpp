// Element-wise functions of several tensors.
#include "kernels/pointwise.h"
#include "mezzo/pointwise_ops.h"
#include "ops/common.h"

#include <cmath>

namespace mezzo {

namespace {

// In decompositions 16-bit inputs have been converted, so that only the result is rounded.
// From the nearer end, so that a weight of 1 gives b exactly.
const OpOf<kernels::Lerp> lerp_op{
    {.result = Result::promoted, .strided = true, .mixed = true, .decomposition = [](In in) -> Tensors {
         const Tensor &a = in[0], &b = in[1], &w = in[2], d = b - a;
         return {where(lt(abs(w), 0.5), a + w * d, b - (1.0 - w) * d)};
     }}};
const OpOf<kernels::LerpScalar> lerp_scalar_op{
    {.result = Result::promoted,
     .strided = true,
     .mixed = true,
     .decomposition = [](In in, const kernels::LerpScalar& at) -> Tensors {
         const Tensor d = in[1] - in[0];
         if (std::abs(at.weight) < 0.5) return {in[0] + at.weight * d};
         return {in[1] - (1 - at.weight) * d};
     }}};
const OpOf<kernels::AddCMul> addcmul_op{{.cast = Cast::promote,
                                         .result = Result::promoted,
                                         .decomposition = [](In in, const kernels::AddCMul& at) -> Tensors {
                                             const Tensor product = in[1] * in[2];
                                             return {in[0] + (at.value == 1 ? product : product * at.value)};
                                         }}};
const OpOf<kernels::AddCDiv> addcdiv_op{{.cast = Cast::promote,
                                         .result = Result::promoted,
                                         .decomposition = [](In in, const kernels::AddCDiv& at) -> Tensors {
                                             const Tensor quotient = in[1] / in[2];
                                             return {in[0] +
                                                     (at.value == 1 ? quotient : quotient * at.value)};
                                         }}};

// Gates. In 16 bit a factor would leave the range of the dtype though the product does not: the product of
// float32 factors is rounded once.
struct Glu {
    static constexpr const char* name = "glu";
};
struct SwiGlu {
    static constexpr const char* name = "swiglu";
};
const OpOf<Glu> glu_op{
    {.result = Result::promoted, .strided = true, .mixed = true, .decomposition = [](In in) -> Tensors {
         return {in[0] * sigmoid(in[1])};
     }}};
const OpOf<SwiGlu> swiglu_op{
    {.result = Result::promoted, .strided = true, .mixed = true, .decomposition = [](In in) -> Tensors {
         return {silu(in[0]) * in[1]};
     }}};

// The dtype of the three together; 0-dim tensors change it as in a + b.
Dtype dtype_of_three(Cast cast, const Tensor& x, const Tensor& a, const Tensor& b) {
    const int dims = std::max(a.dim(), b.dim());
    const Dtype of_both =
        promote_operands(autocast_dtype(cast, a), a.dim(), autocast_dtype(cast, b), b.dim());
    return promote_operands(autocast_dtype(cast, x), x.dim(), of_both, dims);
}

template <class A> Tensor of_three(const OpOf<A>& op, const Tensor& x, const Tensor& a, const Tensor& b,
                                   const std::type_identity_t<A>& at) {
    const char* name = op.row().name;
    for (const Tensor& t : {x, a, b}) check_floating(name, t);
    const Shape shape = broadcast_shapes(name, x.shape(), broadcast_shapes(name, a.shape(), b.shape()));
    return call(op, {x, a, b}, at, shape, dtype_of_three(op.row().cast, x, a, b));
}

struct Halves {
    Tensor first, second;
};
Halves halves(const char* op, const Tensor& x, std::int64_t dim) {
    check_floating(op, x);
    check(x.dim() > 0, ErrorKind::shape, op, ": a 0-dim tensor has no halves");
    const int d = wrap_dim(op, dim, x.dim());
    const std::int64_t n = x.size(d);
    check(n % 2 == 0, ErrorKind::shape, op, ": dimension ", d, " of ", x.shape(), " has no halves");
    return {x.slice(d, 0, n / 2), x.slice(d, n / 2, n)};
}

}  // namespace

Tensor isnan(const Tensor& x) {
    check_defined("isnan", x);
    return ne(x, x);
}

Tensor isinf(const Tensor& x) {
    check_defined("isinf", x);
    if (!is_floating(x.dtype())) return zeros(x.shape(), {.dtype = boolean, .device = x.device()});
    return eq(abs(x), INFINITY);
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

Tensor glu(const Tensor& x, std::int64_t dim) {
    const Halves h = halves("glu", x, dim);
    return call(glu_op, {h.first, h.second}, {}, h.first.shape());
}
Tensor swiglu(const Tensor& gate, const Tensor& up) {
    check_floating("swiglu", gate, "gate");
    check_floating("swiglu", up, "up");
    return call(swiglu_op, {gate, up}, {}, broadcast_shapes("swiglu", gate.shape(), up.shape()),
                promote_operands(gate.dtype(), gate.dim(), up.dtype(), up.dim()));
}
Tensor swiglu(const Tensor& x, std::int64_t dim) {
    const Halves h = halves("swiglu", x, dim);
    return swiglu(h.first, h.second);
}

}  // namespace mezzo
