// Gradient formulas of the op table that do not fit on its lines.
#pragma once

#include "mezzo/ops.h"

namespace mezzo {

// x in a dtype in which products and quotients of such numbers neither overflow nor vanish: float32 for
// float16, float64 for bfloat16, which has the range of float32; x itself if it is not 16 bit.
Tensor wide(const Tensor& x);

// Gradient of x ^ alpha: g alpha x^(alpha - 1); 0 for alpha == 0, also at x == 0.
Tensor pow_scalar_vjp(const Tensor& g, const Tensor& x, double alpha);
// Gradient of a ^ b by a: g b a^(b - 1); 0 where b == 0, also at a == 0.
Tensor pow_base_vjp(const Tensor& g, const Tensor& a, const Tensor& b);
// Gradient of a ^ b by b: g a^b log(a), with 0 at a == 0.
Tensor pow_exponent_vjp(const Tensor& g, const Tensor& a, const Tensor& b);
// The gradient by one operand of maximum or minimum: 0 where `other` says that the other operand is the
// result, g / 2 at ties, otherwise g, also where an operand is NaN.
Tensor select_grad(const Tensor& g, const Tensor& other, const Tensor& tie);
// g a f''(x): the gradient by x of a f'(x), for f = gelu, gelu_tanh, silu, mish.
Tensor gelu_second_vjp(const Tensor& g, const Tensor& a, const Tensor& x);
Tensor gelu_tanh_second_vjp(const Tensor& g, const Tensor& a, const Tensor& x);
Tensor silu_second_vjp(const Tensor& g, const Tensor& a, const Tensor& x);
Tensor mish_second_vjp(const Tensor& g, const Tensor& a, const Tensor& x);
// Gradient of elu: g where x > 0, else g alpha e^x.
Tensor elu_vjp(const Tensor& g, const Tensor& x, double alpha);
// g where low < x < high or x is NaN, else 0.
Tensor clamp_vjp(const Tensor& g, const Tensor& x, double low, double high);
Tensor hardtanh_vjp(const Tensor& g, const Tensor& x, double low, double high);
// g c / (a^2 + b^2), 0 where a and b are 0: with c = b the gradient of atan2(a, b) by a.
Tensor atan2_vjp(const Tensor& g, const Tensor& c, const Tensor& a, const Tensor& b);

// The products of all elements before each one along dim, or with `reverse` after it; 1 where there is none.
Tensor exclusive_cumprod(const Tensor& x, std::int64_t dim, bool reverse);

}  // namespace mezzo
