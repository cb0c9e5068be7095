// Special functions (erfc, erfinv, lgamma, digamma), and functions of two tensors with formulas that stay in
// range. Most are computed in float64; where() never selects between a number and a NaN or infinity that its
// gradient would multiply by 0.
#include <cmath>

#include "mezzo/pointwise_ops.h"
#include "ops/elementwise/formulas.h"

namespace mezzo {

namespace {

constexpr double pi = 3.14159265358979323846, half_sqrt_pi = 0.886226925452758013649;

// erfc(z) = 2 Phi(-z sqrt(2)), and gelu(x) = x Phi(x), whose kernels have all digits of the tail in float64.
// Beyond 30 it is 0. Below 0.5, where the quotient's gradient would lose digits, 1 - erf(z) has them.
Tensor erfc_of(const Tensor& z) {
    const Tensor low = lt(z, 0.5);
    const Tensor x = clamp(masked_fill(z, low, 1), -INFINITY, 30) * -1.41421356237309504880;
    return where(low, 1.0 - erf(masked_fill(z, logical_not(low), 0)), 2.0 * (gelu(x) / x));
}

// A step of Halley's method for erf(y) = x, 0 <= x < 1, which triples the digits of y.
Tensor halley_step(const Tensor& x, const Tensor& y) {
    const Tensor error = where(lt(x, 0.5), erf(y) - x, (1.0 - x) - erfc_of(y));
    const Tensor step = error * (half_sqrt_pi * exp(square(y)));
    return y - step / (1.0 + y * step);
}

// From Winitzki's approximation, whose relative error is 0.002 (A handy approximation for the error function
// and its inverse, 2008): two steps give all digits. The third, from a constant, gives the result its history
// with exact first and second derivatives.
Tensor erfinv_of(const Tensor& x) {
    Tensor y;
    {
        const NoGrad plain;
        const double a = 0.147;
        const Tensor log_rest = log((1.0 - x) * (x + 1.0)), b = 0.5 * log_rest + 2 / (pi * a);
        const Tensor c = log_rest * (-1 / a);
        y = sqrt(c / (sqrt(square(b) + c) + b));
        for (int step = 0; step < 2; ++step) y = halley_step(x, y);
    }
    return halley_step(x, y);
}

// x moved to where the asymptotic series of Gamma hold: 1 - x for negative x, and 8 more below 8.
struct Shifted {
    Tensor negative, low;  // masks: x < 0, and what needs the 8 more
    Tensor t, z;           // before and after the 8 are added; t is 1 where it is not low
    // The distance of a negative x to the next whole number, 0.25 for others: sin(pi x) and its derivatives
    // follow from it.
    Tensor fraction;
};
Shifted shifted(const Tensor& x) {
    Shifted s;
    s.negative = lt(x, 0.0);
    const Tensor positive = where(s.negative, 1.0 - x, x);
    s.low = lt(positive, 8.0);
    s.t = masked_fill(positive, logical_not(s.low), 1);
    s.z = where(s.low, positive + 8.0, positive);
    s.fraction = masked_fill(x - round(x), logical_not(s.negative), 0.25);
    return s;
}

// ln |Gamma|: Stirling's series (Abramowitz and Stegun 6.1.41), the recurrence and the reflection formula.
Tensor lgamma_of(const Tensor& x) {
    const Shifted s = shifted(x);
    const double c[] = {1.0 / 12,   -1.0 / 360,        1.0 / 1260, -1.0 / 1680,
                        1.0 / 1188, -691.0 / 360360.0, 1.0 / 156};
    const Tensor inverse = 1.0 / s.z;
    const Tensor series = polynomial(square(inverse), c) * inverse;
    const double rest = 0.5 * std::log(2 * pi) - 0.5;
    const Tensor far = (s.z - 0.5) * (log(s.z) - 1.0) + (series + rest);
    Tensor factors = s.t + 1.0;
    for (int k = 2; k < 8; ++k) factors = factors * (s.t + k);
    const Tensor y = where(s.low, far - log(factors) - log(s.t), far);
    return where(s.negative, (std::log(pi) - log(abs(sin(pi * s.fraction)))) - y, y);
}

// Its derivative: Abramowitz and Stegun 6.3.18, with the same two formulas.
Tensor digamma_of(const Tensor& x) {
    const Shifted s = shifted(x);
    const double c[] = {-1.0 / 12, 1.0 / 120, -1.0 / 252, 1.0 / 240, -1.0 / 132, 691.0 / 32760.0, -1.0 / 12};
    const Tensor inverse = 1.0 / s.z, w = square(inverse);
    const Tensor far = log(s.z) - 0.5 * inverse + polynomial(w, c) * w;
    Tensor sum = 1.0 / s.t;
    for (int k = 1; k < 8; ++k) sum = sum + 1.0 / (s.t + k);
    const Tensor y = where(s.low, far - sum, far), angle = pi * s.fraction;
    const Tensor pole = logical_and(s.negative, eq(s.fraction, 0.0));
    return masked_fill(where(s.negative, y - pi * (cos(angle) / sin(angle)), y), pole, NAN);
}

const Op<Formula> erfc_op{
    {.name = "erfc"}, nullptr, [](In in) -> Tensors { return {erfc_of(doubled(in[0]))}; }};

const Op<Formula> erfinv_op{{.name = "erfinv", .cast = CastPolicy::fp32}, nullptr, [](In in) -> Tensors {
                                return {odd(doubled(in[0]), [](const Tensor& a) {
                                    const Tensor one = eq(a, 1.0);
                                    const Tensor pole = 1.0 / (1.0 - masked_fill(a, logical_not(one), 0));
                                    return where(one, pole, erfinv_of(masked_fill(a, one, 0)));
                                })};
                            }};

const Op<Formula> lgamma_op{{.name = "lgamma"}, nullptr, [](In in) -> Tensors {
                                const Tensor x = doubled(in[0]);
                                const Tensor infinite = isinf(x);  // its logarithm is as infinite
                                return {where(infinite, abs(x), lgamma_of(masked_fill(x, infinite, 1)))};
                            }};

const Op<Formula> digamma_op{
    {.name = "digamma"}, nullptr, [](In in) -> Tensors { return {digamma_of(doubled(in[0]))}; }};

// The larger one plus log(1 + e^(smaller - larger)). where() instead of maximum() and abs(), whose second
// derivatives at equal numbers would be wrong. The difference of equal infinities would be NaN.
const Op<Formula> logaddexp_op{
    {.name = "logaddexp", .result = ResultDtype::promoted}, nullptr, [](In in) -> Tensors {
        const Tensor &a = in[0], &b = in[1], first = ge(a, b);
        const Tensor larger = where(first, a, b), smaller = where(first, b, a);
        const Tensor equal = logical_and(isinf(larger), eq(a, b));
        return {larger + softplus(masked_fill(smaller - larger, equal, 0))};
    }};

// Divided by the larger one, a constant for the gradient, which does not depend on it. An infinity wins over
// NaN, as in C.
const Op<Formula> hypot_op{{.name = "hypot", .result = ResultDtype::promoted}, nullptr, [](In in) -> Tensors {
                               const Tensor a = doubled(in[0]), b = doubled(in[1]);
                               const Tensor larger = maximum(abs(a.detach()), abs(b.detach()));
                               const Tensor unit = clamp(larger, 0x1p-1000, 0x1p1000);
                               const Tensor sum = square(a / unit) + square(b / unit), zero = eq(sum, 0.0);
                               const Tensor y = unit * masked_fill(sqrt(masked_fill(sum, zero, 1)), zero, 0);
                               return {masked_fill(y, logical_or(isinf(a), isinf(b)), INFINITY)};
                           }};

const Op<Formula> xlogy_op{{.name = "xlogy", .result = ResultDtype::promoted}, nullptr, [](In in) -> Tensors {
                               const Tensor a = doubled(in[0]), b = doubled(in[1]);
                               const Tensor no_log = logical_or(le(b, 0.0), eq(b, INFINITY));
                               const Tensor zero = logical_and(eq(a, 0.0), no_log);
                               return {where(zero, 0.0, a) * log(where(zero, 1.0, b))};
                           }};

}  // namespace

Tensor erfc(const Tensor& x) { return of_real(erfc_op, x); }
Tensor erfinv(const Tensor& x) { return of_real(erfinv_op, x); }
Tensor lgamma(const Tensor& x) { return of_real(lgamma_op, x); }
Tensor digamma(const Tensor& x) { return of_real(digamma_op, x); }

Tensor logaddexp(const Tensor& a, const Tensor& b) { return of_reals(logaddexp_op, a, b); }
Tensor hypot(const Tensor& a, const Tensor& b) { return of_reals(hypot_op, a, b); }
Tensor xlogy(const Tensor& a, const Tensor& b) { return of_reals(xlogy_op, a, b); }

}  // namespace mezzo
