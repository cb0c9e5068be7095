// Vectorised exponential and GELU; internal linkage like vector.h, which says why.
#pragma once

#include "cpu/vector.h"

namespace mezzo::cpu {
namespace {

// e^x within 1.5 ulp for x in [-87, 88]; below that 0, above that e^88; NaN stays NaN. Cody-Waite reduction
// by ln 2 in two parts and the degree-6 polynomial of Cephes' expf.
template <int N> MEZZO_INLINE FloatN<N> exp(FloatN<N> x) {
    const FloatN<N> zero = {};
    const IntN<N> under = x < -87.0f;
    FloatN<N> y = select<N>(x > 88.0f, zero + 88.0f, x);
    y = select<N>(under, zero, y);
    const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
    FloatN<N> n = y * 1.44269504f + magic;
    const IntN<N> exponent = (IntN<N>)((UintN<N>)n << 23);
    n = n - magic;
    const FloatN<N> r = (y - n * 0.693359375f) + n * 2.12194440e-4f;
    FloatN<N> p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    const FloatN<N> scaled = (FloatN<N>)((IntN<N>)p + exponent);
    return select<N>(x != x, x, select<N>(under, zero, scaled));
}

// x Phi(x) with Phi(x) = (1 + erf(x / sqrt 2)) / 2. Two polynomials after N. Juffa: near zero erf itself,
// farther out ln erfc, so that the left tail is not lost where 1 + erf cancels: a few ulp for x > -2, then
// within 2^-26 |x|, and still nine percent of the value at -9.
template <int N> MEZZO_INLINE FloatN<N> gelu(FloatN<N> x) {
    const FloatN<N> zero = {};
    const FloatN<N> a = x * 0.70710678f;
    FloatN<N> t = select<N>(a < 0.0f, -a, a);
    t = select<N>(t > 10.0f, zero + 10.0f, t);
    const FloatN<N> s = t * t;
    FloatN<N> far = (t * -1.72853470e-5f + 3.83197126e-4f) * s + (t * -3.88396438e-3f + 2.42546219e-2f);
    far = far * t - 1.06777877e-1f;
    far = far * t - 6.34846687e-1f;
    far = far * t - 1.28717512e-1f;
    far = far * t - t;
    const FloatN<N> tail = exp<N>(far) * 0.5f;
    FloatN<N> near = s * -5.96761703e-4f + 4.99119423e-3f;
    near = near * s - 2.67681349e-2f;
    near = near * s + 1.12819925e-1f;
    near = near * s - 3.76125336e-1f;
    near = near * s + 1.28379166e-1f;
    near = near * a + a;
    const FloatN<N> far_phi = select<N>(x < 0.0f, tail, 1.0f - tail);
    return x * select<N>(t > 0.927734375f, far_phi, near * 0.5f + 0.5f);
}

// x / 2 (1 + tanh u) = x / (1 + e^-2u), u = sqrt(2 / pi) (x + 0.044715 x^3).
template <int N> MEZZO_INLINE FloatN<N> gelu_tanh(FloatN<N> x) {
    const FloatN<N> u = (x * x * 0.044715f + 1.0f) * x;
    return x / (exp<N>(u * -1.59576912f) + 1.0f);
}

// PyTorch's relu: NaN stays NaN.
template <int N> MEZZO_INLINE FloatN<N> relu(FloatN<N> x) { return select<N>(x < 0.0f, FloatN<N>{}, x); }

}  // namespace
}  // namespace mezzo::cpu
