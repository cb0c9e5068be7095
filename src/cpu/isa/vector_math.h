// Vectorised exponential and GELU. Everything has internal linkage; vector.h says why.
#pragma once

#include "cpu/elementwise/normal_tables.h"
#include "cpu/isa/vector.h"

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

// table[i & 15] in each lane.
template <int N> MEZZO_INLINE FloatN<N> look_up(const float* table, UintN<N> i) {
#if defined(__AVX512F__)
    if constexpr (N == 16)
        return (FloatN<N>)_mm512_maskz_permutexvar_ps(0xffff, (__m512i)i, _mm512_load_ps(table));
#endif
#if defined(__AVX2__)
    if constexpr (N == 8) {
        const __m256 low = _mm256_permutevar8x32_ps(_mm256_load_ps(table), (__m256i)i);
        const __m256 high = _mm256_permutevar8x32_ps(_mm256_load_ps(table + 8), (__m256i)i);
        return (FloatN<N>)_mm256_blendv_ps(low, high, (__m256)(i << 28));
    }
#endif
    FloatN<N> v;
    for (int l = 0; l < N; ++l) v[l] = table[i[l] & 15];
    return v;
}

// The tables' piecewise polynomial at t >= 0; it is 0 from 9.0625 on. Adding the magic number rounds t /
// 0.625 to the number of its interval, in the low bits.
template <int N, int terms> MEZZO_INLINE FloatN<N> piecewise(const float (&table)[terms][16], FloatN<N> t) {
    const float magic = 12582912.0f;  // 1.5 * 2^23
    const FloatN<N> number = t * 1.6f + magic;
    const FloatN<N> d = t - (number - magic) * 0.625f;
    FloatN<N> p = look_up<N>(table[0], (UintN<N>)number);
    for (int j = 1; j < terms; ++j) p = p * d + look_up<N>(table[j], (UintN<N>)number);
    return p;
}

// min(|x|, 9.375), the middle of the last interval; NaN stays NaN.
template <int N> MEZZO_INLINE FloatN<N> bounded_magnitude(FloatN<N> x) {
    const FloatN<N> t = (FloatN<N>)((UintN<N>)x & 0x7fffffffu), most = FloatN<N>{} + 9.375f;
    return t > most ? most : t;
}

// x Phi(x), Phi the standard normal distribution function. Relative error at most 3e-7 for x > -2, 4e-5 for
// x > -5 and 3e-3 for x > -9.0625; -0 from there on, where the value is below 6e-19 in magnitude, and NaN at
// minus infinity, as in PyTorch.
template <int N> MEZZO_INLINE FloatN<N> gelu(FloatN<N> x) {
    const FloatN<N> tail = piecewise<N>(normal_tail, bounded_magnitude<N>(x));
    return x * (x < FloatN<N>{} ? tail : 1.0f - tail);
}

// Derivative of gelu(): Phi(x) + x phi(x), within 7e-8; 1 or 0 from 9.0625 on.
template <int N> MEZZO_INLINE FloatN<N> gelu_derivative(FloatN<N> x) {
    const FloatN<N> below = piecewise<N>(gelu_slope, bounded_magnitude<N>(x));
    return x < FloatN<N>{} ? below : 1.0f - below;
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
