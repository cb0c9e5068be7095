// Further element-wise functions: powers and logarithms, trigonometric, special and hyperbolic functions,
// activations, division with rounding, comparisons of floating numbers. Inputs broadcast and are promoted as
// in a + b.
//
//   y = lerp(x, y, 0.25);  // x + 0.25 (y - x)
//   y = swiglu(matmul(x, weight));
//   y = nan_to_num(log2(x), {.neginf = 0});
//   y = div(x, 2, RoundingMode::floor);
#pragma once

#include <cstdint>
#include <optional>

#include "mezzo/tensor.h"

#pragma GCC visibility push(default)

namespace mezzo {

// Whether x is NaN, boolean; integers are neither NaN nor infinite.
[[nodiscard]] Tensor isnan(const Tensor& x);
// Whether x is infinite, boolean.
[[nodiscard]] Tensor isinf(const Tensor& x);

// Functions of one tensor. Integers are converted to float32; 16-bit results are rounded once. Outside of a
// function's domain the result is NaN.
// 2^x; exact for whole x
[[nodiscard]] Tensor exp2(const Tensor& x);
// Logarithms to base 2 and 10; exact where x is a power of the base.
[[nodiscard]] Tensor log2(const Tensor& x);
[[nodiscard]] Tensor log10(const Tensor& x);
// Tangent of radians, and the inverse functions in radians
[[nodiscard]] Tensor tan(const Tensor& x);
[[nodiscard]] Tensor asin(const Tensor& x);
[[nodiscard]] Tensor acos(const Tensor& x);
[[nodiscard]] Tensor atan(const Tensor& x);
// (e^x - e^-x) / 2 and (e^x + e^-x) / 2, and the inverse functions; exact to rounding also near 0
[[nodiscard]] Tensor sinh(const Tensor& x);
[[nodiscard]] Tensor cosh(const Tensor& x);
[[nodiscard]] Tensor asinh(const Tensor& x);
[[nodiscard]] Tensor acosh(const Tensor& x);
[[nodiscard]] Tensor atanh(const Tensor& x);
// 1 - erf(x), with all its digits where it is small
[[nodiscard]] Tensor erfc(const Tensor& x);
// The inverse of erf(); infinite at -1 and 1.
[[nodiscard]] Tensor erfinv(const Tensor& x);
// ln |Gamma(x)|; infinite at 0, -1, -2, ... The error at its zeros, 1 and 2, is absolute: 3e-15 in float64.
[[nodiscard]] Tensor lgamma(const Tensor& x);
// The derivative of ln Gamma(x); NaN at -1, -2, ..., -infinity at 0 and infinity at -0.
[[nodiscard]] Tensor digamma(const Tensor& x);

// Activations. 16-bit results are rounded once.
// 1.0507009873554805 elu(x, 1.6732632423543772) (Klambauer et al., arXiv 1706.02515)
[[nodiscard]] Tensor selu(const Tensor& x);
// x > 0 ? x : alpha (e^(x / alpha) - 1) (Barron, arXiv 1704.07483). Error(value) unless alpha > 0.
[[nodiscard]] Tensor celu(const Tensor& x, double alpha = 1);
// min(max(x, 0), 6)
[[nodiscard]] Tensor relu6(const Tensor& x);
// relu6(x + 3) / 6
[[nodiscard]] Tensor hardsigmoid(const Tensor& x);
// x hardsigmoid(x) (Howard et al., arXiv 1905.02244)
[[nodiscard]] Tensor hardswish(const Tensor& x);
// 0 where |x| <= lambda, else x
[[nodiscard]] Tensor hardshrink(const Tensor& x, double lambda = 0.5);
// 0 where |x| <= lambda, else x moved towards 0 by lambda. Error(value) for a negative lambda.
[[nodiscard]] Tensor softshrink(const Tensor& x, double lambda = 0.5);
// log(sigmoid(x)), accurate also where sigmoid(x) is close to 0
[[nodiscard]] Tensor logsigmoid(const Tensor& x);
// x > 0 ? x : weight x, with one weight [1], or one for each channel [channels], the last dimension of x (He
// et al., arXiv 1502.01852). Both are floating. Under autocast 16 bit.
[[nodiscard]] Tensor prelu(const Tensor& x, const Tensor& weight);
// x > threshold ? x : value; NaN stays NaN.
[[nodiscard]] Tensor threshold(const Tensor& x, double threshold, double value);

struct NanToNumOptions {
    double nan = 0;
    // none: the largest and lowest finite number of the dtype
    std::optional<double> posinf = {}, neginf = {};
};
// x where it is finite, numbers instead of NaN and infinities; the gradient of those is 0.
[[nodiscard]] Tensor nan_to_num(const Tensor& x, const NanToNumOptions& options = {});

// Division rounded towards 0, or down to the next integer. Two integers give an integer; by 0 they are an
// error for a number, and 0 for a tensor. Not differentiable.
enum class RoundingMode : std::uint8_t { trunc, floor };
[[nodiscard]] Tensor div(const Tensor& a, const Tensor& b, RoundingMode rounding);
[[nodiscard]] Tensor div(const Tensor& a, Scalar b, RoundingMode rounding);
// div(a, b, RoundingMode::floor)
[[nodiscard]] Tensor floor_divide(const Tensor& a, const Tensor& b);
[[nodiscard]] Tensor floor_divide(const Tensor& a, Scalar b);
// a - b trunc(a / b), exactly; it has the sign of a. Errors are those of remainder().
[[nodiscard]] Tensor fmod(const Tensor& a, const Tensor& b);
[[nodiscard]] Tensor fmod(const Tensor& a, Scalar b);

// These three convert integers to the dtype of the other operand, two of them to float32.
// log(e^a + e^b), computed without leaving the range of the dtype
[[nodiscard]] Tensor logaddexp(const Tensor& a, const Tensor& b);
// sqrt(a^2 + b^2), computed without leaving the range of the dtype. The gradient at 0 is 0.
[[nodiscard]] Tensor hypot(const Tensor& a, const Tensor& b);
// a log(b), and 0 where a is 0 unless b is NaN.
[[nodiscard]] Tensor xlogy(const Tensor& a, const Tensor& b);

// Whether exactly one of a and b is not 0, boolean.
[[nodiscard]] Tensor logical_xor(const Tensor& a, const Tensor& b);
struct IsCloseOptions {
    double rtol = 1e-5, atol = 1e-8;  // not negative
    bool equal_nan = false;           // whether NaN is close to NaN
};
// Whether |a - b| <= atol + rtol |b|, boolean; infinities are close to themselves.
[[nodiscard]] Tensor isclose(const Tensor& a, const Tensor& b, IsCloseOptions options = {});
// Whether a and b have one shape and equal elements; NaN equals nothing. Waits for the device.
[[nodiscard]] bool equal(const Tensor& a, const Tensor& b);

// All three are floating, and 16-bit results are rounded once.
// a + weight (b - a)
[[nodiscard]] Tensor lerp(const Tensor& a, const Tensor& b, double weight);
[[nodiscard]] Tensor lerp(const Tensor& a, const Tensor& b, const Tensor& weight);
[[nodiscard]] Tensor addcmul(const Tensor& x, const Tensor& a, const Tensor& b,
                             double value = 1);  // x + value a b
[[nodiscard]] Tensor addcdiv(const Tensor& x, const Tensor& a, const Tensor& b, double value = 1);

// a sigmoid(b) of the two halves a and b of x along dim (Dauphin et al., arXiv 1612.08083). Error(shape) for
// an odd size.
[[nodiscard]] Tensor glu(const Tensor& x, std::int64_t dim = -1);
// silu(gate) * up (Shazeer, arXiv 2002.05202); of one tensor: of its halves along dim, gate first.
[[nodiscard]] Tensor swiglu(const Tensor& gate, const Tensor& up);
[[nodiscard]] Tensor swiglu(const Tensor& x, std::int64_t dim = -1);

}  // namespace mezzo

#pragma GCC visibility pop
