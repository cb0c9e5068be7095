// Random draws of other distributions, computed from rand() and randn(). They have no gradient.
#include <cmath>

#include "autograd/op_observer.h"
#include "mezzo/pointwise_ops.h"
#include "mezzo/reduce_ops.h"
#include "mezzo/shape_ops.h"
#include "ops/common.h"

namespace mezzo {

namespace {

TensorOptions on(const Tensor& x, Dtype dtype) { return {.dtype = dtype, .device = x.device()}; }

// Uniform numbers to compare probabilities with, of 24 or 53 bits.
Tensor uniform(const Tensor& x) { return rand(x.shape(), on(x, x.dtype() == float64 ? float64 : float32)); }

void check_on_cpu(const char* op, const Tensor& holds, const char* what) {
    if (holds.device().type() != DeviceType::cpu) return;
    check(all(holds).item<bool>(), ErrorKind::value, op, ": ", what);
}

}  // namespace

Tensor bernoulli(const Tensor& p) {
    const CompositeOp here("bernoulli");
    check_floating("bernoulli", p);
    const NoGrad plain;
    const Tensor probable = logical_and(ge(p, 0.0), le(p, 1.0));
    check_on_cpu("bernoulli", probable, "a probability is outside of [0, 1]");
    const Tensor y = cast(lt(uniform(p), p), p.dtype());
    return masked_fill(y, logical_not(probable), NAN);
}

Tensor bernoulli(const Tensor& x, double p) {
    const CompositeOp here("bernoulli");
    check_defined("bernoulli", x);
    check(p >= 0 && p <= 1, ErrorKind::value, "bernoulli: p ", p, " is outside of [0, 1]");
    return cast(lt(rand(x.shape(), on(x, float64)), p), x.dtype());
}

// -ln(1 - u) of a uniform u, without 0: the least u is 2^-53.
Tensor exponential(const Shape& shape, double lambda, TensorOptions options) {
    const CompositeOp here("exponential");
    check(lambda > 0, ErrorKind::value, "exponential: lambda is ", lambda, "; it must be positive");
    check(is_floating(options.dtype), ErrorKind::dtype, "exponential: the dtype ", options.dtype,
          " is not floating");
    // The least numbers, for results that underflow.
    const double least = options.dtype == float16    ? 0x1p-24
                         : options.dtype == bfloat16 ? 0x1p-133
                         : options.dtype == float32  ? 0x1p-149
                                                     : 0x1p-1074;
    Tensor y;
    {
        const NoGrad plain;
        const Tensor u = rand(shape, {.dtype = float64, .device = options.device});
        y = cast(log1p(-masked_fill(u, eq(u, 0.0), 0x1p-54)) / -lambda, options.dtype);
        y = masked_fill(y, eq(y, 0.0), least);
    }
    if (options.requires_grad) y.set_requires_grad();
    return y;
}

Tensor normal(const Tensor& mean, const Tensor& std) {
    const CompositeOp here("normal");
    const NoGrad plain;
    check_floating("normal", mean, "mean");
    check_floating("normal", std, "std");
    check_on_cpu("normal", logical_not(lt(std, 0.0)), "a std is negative");
    const Shape shape = broadcast_shapes("normal", mean.shape(), std.shape());
    const Dtype dtype = promote_operands(mean.dtype(), mean.dim(), std.dtype(), std.dim());
    const Tensor noise = randn(shape, on(mean, is_16bit(dtype) ? float32 : dtype));
    return cast(widened(mean) + widened(std) * noise, dtype);
}

Tensor normal(const Tensor& mean, double std) {
    check_defined("normal", mean);
    return normal(mean, scalar(std, on(mean, mean.dtype())));
}

Tensor normal(double mean, const Tensor& std) {
    check_defined("normal", std);
    return normal(scalar(mean, on(std, std.dtype())), std);
}

}  // namespace mezzo
