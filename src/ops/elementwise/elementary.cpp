// Powers, logarithms, trigonometric and hyperbolic functions, in terms of those that have kernels. Formulas
// that would lose digits or leave the range are computed in float64.
#include <cmath>

#include "mezzo/pointwise_ops.h"
#include "ops/elementwise/formulas.h"

namespace mezzo {

Tensor of_real(const Op<Formula>& op, const Tensor& x) {
    check_defined(op.name(), x);
    return call(op, {is_floating(x.dtype()) ? x : cast(x, float32)}, {}, x.shape());
}

Tensor of_reals(const Op<Formula>& op, const Tensor& a, const Tensor& b) {
    const char* name = op.name();
    check_defined(name, a);
    check_defined(name, b);
    const CastPolicy cast_policy = op.traits().cast;
    Dtype dtype =
        promote_operands(autocast_dtype(cast_policy, a), a.dim(), autocast_dtype(cast_policy, b), b.dim());
    if (!is_floating(dtype)) dtype = float32;
    const Dtype wide = is_16bit(dtype) ? float32 : dtype;
    const auto real = [&](const Tensor& x) { return is_floating(x.dtype()) ? x : cast(x, wide); };
    return call(op, {real(a), real(b)}, {}, broadcast_shapes(name, a.shape(), b.shape()), dtype);
}

namespace {

constexpr double ln2 = 0.693147180559945309417, ln10 = 2.302585092994045684018;

Tensor number_like(const Tensor& x, double value) {
    return scalar(value, {.dtype = x.dtype(), .device = x.device()});
}

// n - y where x is base^n and y, next to the whole number n, its rounded logarithm; else 0.
Tensor correction(const Tensor& x, const Tensor& y, double base) {
    const NoGrad plain;
    const Tensor n = round(y), off = n - y;
    const Tensor power = logical_and(eq(pow(number_like(x, base), n), x), lt(abs(off), 1e-9));
    return masked_fill(off, logical_not(power), 0);
}

// ln(x) / ln(base) in float64, from which float32 results are rounded correctly.
Tensor logarithm(const Tensor& x, double base, double ln_base) {
    const Tensor y = log(doubled(x)) / ln_base;
    return x.dtype() == float64 ? y + correction(x, y, base) : y;
}

// sqrt(1 - x^2), whose gradient is infinite, not NaN, at -1 and 1.
Tensor other_leg(const Tensor& x) { return sqrt(1.0 - x) * sqrt(x + 1.0); }

// asinh(x) for x >= 0: ln(1 + x + x^2 / (sqrt(x^2 + 1) + 1)), and ln(2 x) where x is large.
Tensor asinh_of(const Tensor& x) {
    const Tensor large = gt(x, 1e18), t = masked_fill(x, large, 1);
    const Tensor above = t + t * (t / (sqrt(square(t) + 1.0) + 1.0));
    return where(large, log(masked_fill(x, logical_not(large), 1)) + ln2, log1p(above));
}

const Op<Formula> exp2_op{
    {.name = "exp2"}, nullptr, [](In in) -> Tensors { return {pow(number_like(in[0], 2), in[0])}; }};
const Op<Formula> log2_op{{.name = "log2", .cast = CastPolicy::fp32}, nullptr, [](In in) -> Tensors {
                              return {logarithm(in[0], 2, ln2)};
                          }};
const Op<Formula> log10_op{{.name = "log10", .cast = CastPolicy::fp32}, nullptr, [](In in) -> Tensors {
                               return {logarithm(in[0], 10, ln10)};
                           }};

const Op<Formula> tan_op{{.name = "tan", .cast = CastPolicy::fp32}, nullptr, [](In in) -> Tensors {
                             return {sin(in[0]) / cos(in[0])};
                         }};
const Op<Formula> asin_op{{.name = "asin", .cast = CastPolicy::fp32}, nullptr, [](In in) -> Tensors {
                              return {atan2(in[0], other_leg(in[0]))};
                          }};
const Op<Formula> acos_op{{.name = "acos", .cast = CastPolicy::fp32}, nullptr, [](In in) -> Tensors {
                              return {atan2(other_leg(in[0]), in[0])};
                          }};
const Op<Formula> atan_op{{.name = "atan"}, nullptr, [](In in) -> Tensors {
                              const Tensor x = doubled(in[0]);
                              return {atan2(x, number_like(x, 1))};
                          }};

// sinh(x / 2), with all digits near 0.
Tensor half_sinh(const Tensor& given) {
    const Tensor half = 0.5 * doubled(given);
    return 0.5 * (expm1(half) - expm1(-half));
}
// 2 s sqrt(1 + s^2) and 1 + 2 s^2, whose squares stay in range as long as the result does.
const Op<Formula> sinh_op{{.name = "sinh", .cast = CastPolicy::fp32}, nullptr, [](In in) -> Tensors {
                              const Tensor s = half_sinh(in[0]);
                              return {2.0 * s * sqrt(square(s) + 1.0)};
                          }};
const Op<Formula> cosh_op{{.name = "cosh", .cast = CastPolicy::fp32}, nullptr, [](In in) -> Tensors {
                              const Tensor s = half_sinh(in[0]);
                              return {2.0 * s * s + 1.0};
                          }};

const Op<Formula> asinh_op{
    {.name = "asinh"}, nullptr, [](In in) -> Tensors { return {odd(doubled(in[0]), asinh_of)}; }};
const Op<Formula> acosh_op{{.name = "acosh"}, nullptr, [](In in) -> Tensors {
                               const Tensor x = doubled(in[0]);
                               return {asinh_of(sqrt(x - 1.0) * sqrt(x + 1.0))};
                           }};
const Op<Formula> atanh_op{{.name = "atanh"}, nullptr, [](In in) -> Tensors {
                               const Tensor x = doubled(in[0]);
                               return {0.5 * (log1p(x) - log1p(-x))};
                           }};

}  // namespace

Tensor exp2(const Tensor& x) { return of_real(exp2_op, x); }
Tensor log2(const Tensor& x) { return of_real(log2_op, x); }
Tensor log10(const Tensor& x) { return of_real(log10_op, x); }
Tensor tan(const Tensor& x) { return of_real(tan_op, x); }
Tensor asin(const Tensor& x) { return of_real(asin_op, x); }
Tensor acos(const Tensor& x) { return of_real(acos_op, x); }
Tensor atan(const Tensor& x) { return of_real(atan_op, x); }
Tensor sinh(const Tensor& x) { return of_real(sinh_op, x); }
Tensor cosh(const Tensor& x) { return of_real(cosh_op, x); }
Tensor asinh(const Tensor& x) { return of_real(asinh_op, x); }
Tensor acosh(const Tensor& x) { return of_real(acosh_op, x); }
Tensor atanh(const Tensor& x) { return of_real(atanh_op, x); }

}  // namespace mezzo
