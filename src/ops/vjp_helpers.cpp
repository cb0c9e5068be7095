#include "ops/vjp_helpers.h"

#include <cmath>

namespace mezzo {

Tensor wide(const Tensor& x) {
    if (!is_16bit(x.dtype())) return x;
    return cast(x, x.dtype() == float16 ? float32 : float64);
}

Tensor pow_scalar_vjp(const Tensor& g, const Tensor& x, double alpha) {
    if (alpha == 0) return zeros_like(g);
    return g * (alpha * pow(wide(x), alpha - 1));
}

Tensor pow_base_vjp(const Tensor& g, const Tensor& a, const Tensor& b) {
    const Tensor exponent = wide(b);
    return g * masked_fill(exponent * pow(wide(a), exponent - 1.0), eq(b, 0.0), 0);
}

Tensor pow_exponent_vjp(const Tensor& g, const Tensor& a, const Tensor& b) {
    // The limit at 0 is 0 for an exponent that is not negative; for a negative one it is -infinity.
    const Tensor base = wide(a), zero = logical_and(eq(a, 0.0), ge(b, 0.0));
    return g * (pow(base, wide(b)) * log(where(zero, 1.0, base)));
}

Tensor select_grad(const Tensor& g, const Tensor& other, const Tensor& tie) {
    return where(tie, 0.5 * g, masked_fill(g, other, 0));
}

// gelu'(x) = Phi(x) + x phi(x), so gelu''(x) = phi(x) (2 - x^2).
Tensor gelu_second_vjp(const Tensor& g, const Tensor& a, const Tensor& given) {
    const double inverse_sqrt_two_pi = 0.3989422804014327;
    const Tensor x = clamp(wide(given), -40, 40);  // density is 0 beyond: no 0 * inf
    const Tensor square_x = square(x);
    const Tensor density = inverse_sqrt_two_pi * exp(-0.5 * square_x);
    return wide(g) * a * (density * (2.0 - square_x));
}

// With u = k (x + c x^3) and t = tanh(u): gelu_tanh(x) = x (1 + t) / 2, whose second derivative is
// (1 - t^2) (u' + x (u'' / 2 - t u'^2)). 1 - t^2 = 4 s(2 u) s(-2 u), s the sigmoid, loses no digits.
Tensor gelu_tanh_second_vjp(const Tensor& g, const Tensor& a, const Tensor& given) {
    const double k = 0.7978845608028654, c = 0.044715;
    const Tensor x = clamp(wide(given), -40, 40);  // the sigmoids' product is 0 beyond: no 0 * inf
    const Tensor square_x = square(x), twice_u = (2 * k) * (x + c * (x * square_x));
    const Tensor first = k * (1.0 + (3 * c) * square_x);
    const Tensor bracket = first + x * ((3 * k * c) * x - tanh(0.5 * twice_u) * square(first));
    return wide(g) * a * (4.0 * (sigmoid(twice_u) * sigmoid(-twice_u)) * bracket);
}

// silu'(x) = s (1 + x (1 - s)) with s = sigmoid(x), and s' = s (1 - s): silu''(x) = s (1 - s) (2 + x (1 - 2
// s)), where 1 - s = sigmoid(-x).
Tensor silu_second_vjp(const Tensor& g, const Tensor& a, const Tensor& given) {
    const Tensor x = wide(given), s = sigmoid(x);
    return wide(g) * a * (s * sigmoid(-x) * (2.0 + x * (1.0 - 2.0 * s)));
}

// mish = x t with t = s (1 + r) / (1 + r^2), s = sigmoid(x), r = sigmoid(-x), and t' = 4 r^2 s / (1 + r^2)^2:
// mish''(x) = t' (2 + x (r - 2 s t)).
Tensor mish_second_vjp(const Tensor& g, const Tensor& a, const Tensor& given) {
    const Tensor x = wide(given), s = sigmoid(x), r = sigmoid(-x), d = reciprocal(square(r) + 1.0);
    const Tensor t = s * (1.0 + r) * d, slope = 4.0 * square(r * d) * s;
    return wide(g) * a * (slope * (2.0 + x * (r - 2.0 * (s * t))));
}

// The exponential is taken of min(x, 0): an overflow at a positive x, where it is not chosen, would make the
// second gradient NaN.
Tensor elu_vjp(const Tensor& g, const Tensor& x, double alpha) {
    const Tensor power = exp(clamp(wide(x), -INFINITY, 0));
    Tensor slope = alpha * power;
    // An alpha that is infinite in the dtype would make NaN of powers that are 0.
    if (std::abs(alpha) > dtype_info(power.dtype()).max) slope = masked_fill(slope, eq(power, 0.0), 0);
    return where(gt(x, 0.0), g, wide(g) * slope);
}

// 0 at the bounds as well: those of clamp_grad move to the next numbers inside. An infinite bound stays.
Tensor clamp_vjp(const Tensor& g, const Tensor& x, double low, double high) {
    const auto inside = [&](double bound, double towards) {
        const bool wide = x.dtype() == float64;
        if (std::abs(bound) > dtype_info(wide ? float64 : float32).max) return bound;
        return wide ? std::nextafter(bound, towards) : double(std::nextafter(float(bound), float(towards)));
    };
    return clamp_grad(g, x, inside(low, INFINITY), inside(high, -INFINITY));
}

Tensor hardtanh_vjp(const Tensor& g, const Tensor& x, double low, double high) {
    return masked_fill(g, logical_or(le(x, low), ge(x, high)), 0);
}

Tensor atan2_vjp(const Tensor& g, const Tensor& c, const Tensor& a, const Tensor& b) {
    const Tensor y = wide(a), x = wide(b), h = square(y) + square(x);
    return wide(g) * (wide(c) / masked_fill(h, eq(h, 0.0), 1));
}

}  // namespace mezzo
