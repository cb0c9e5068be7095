#include "ops/vjp_helpers.h"

namespace mezzo {

Tensor pow_scalar_vjp(const Tensor& g, const Tensor& x, double alpha) {
    if (alpha == 0) return zeros_like(g);
    return g * (alpha * pow(x, alpha - 1));
}

Tensor pow_base_vjp(const Tensor& g, const Tensor& a, const Tensor& b) {
    return g * masked_fill(b * pow(a, b - 1.0), eq(b, 0.0), 0);
}

Tensor pow_exponent_vjp(const Tensor& g, const Tensor& a, const Tensor& b) {
    const Tensor log_a = log(masked_fill(a, eq(a, 0.0), 1));
    return g * (pow(a, b) * log_a);
}

Tensor select_grad(const Tensor& g, const Tensor& chosen, const Tensor& tie) {
    return where(tie, 0.5 * g, masked_fill(g, logical_not(chosen), 0));
}

// gelu'(x) = Phi(x) + x phi(x), so gelu''(x) = phi(x) (2 - x^2).
Tensor gelu_second_vjp(const Tensor& g, const Tensor& a, const Tensor& x) {
    const double inverse_sqrt_two_pi = 0.3989422804014327;
    const Tensor square_x = square(x);
    const Tensor density = inverse_sqrt_two_pi * exp(-0.5 * square_x);
    return g * (a * (density * (2.0 - square_x)));
}

// With u = k (x + c x^3) and t = tanh(u): gelu_tanh(x) = x (1 + t) / 2, whose second derivative is
// (1 - t^2) (u' + x (u'' / 2 - t u'^2)).
Tensor gelu_tanh_second_vjp(const Tensor& g, const Tensor& a, const Tensor& x) {
    const double k = 0.7978845608028654, c = 0.044715;
    const Tensor square_x = square(x);
    const Tensor t = tanh(k * (x + c * (x * square_x)));
    const Tensor first = k * (1.0 + (3 * c) * square_x);
    const Tensor bracket = first + x * ((3 * k * c) * x - t * square(first));
    return g * (a * ((1.0 - square(t)) * bracket));
}

// silu'(x) = s (1 + x (1 - s)) with s = sigmoid(x), and s' = s (1 - s): silu''(x) = s (1 - s) (2 + x (1 - 2
// s)).
Tensor silu_second_vjp(const Tensor& g, const Tensor& a, const Tensor& x) {
    const Tensor s = sigmoid(x);
    return g * (a * (s * (1.0 - s) * (2.0 + x * (1.0 - 2.0 * s))));
}

}  // namespace mezzo
