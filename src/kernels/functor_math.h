// Elementary functions for functors.h, of float and double, on every device. On the host the float versions
// are free of branches and calls, so that a compiler vectorises loops over them: every case is computed and
// one is selected. Their errors are at most 4 ulp (2 ulp for exp, log, erf and tanh); infinities, NaN, signed
// zeros and subnormal numbers are handled as in <cmath>. sin and cos need |x| < sin_limit; loops over larger
// arguments call libm.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#include <cmath>
#define MEZZO_HD __host__ __device__ __forceinline__
#else
#define MEZZO_HD inline __attribute__((always_inline))
#endif

// A translation unit built for one instruction set gives its functions names of their own, so that the linker
// cannot pick them for callers on processors that lack it.
#if defined(MEZZO_ISA_NAMESPACE)
#define MEZZO_FUNCTORS_OPEN inline namespace MEZZO_ISA_NAMESPACE {
#define MEZZO_FUNCTORS_CLOSE }
#else
#define MEZZO_FUNCTORS_OPEN
#define MEZZO_FUNCTORS_CLOSE
#endif

namespace mezzo::functors {
MEZZO_FUNCTORS_OPEN
namespace math {

inline constexpr float sin_limit = 0x1p20f;  // up to here the multiples of pi / 2 are exact

#if defined(__CUDA_ARCH__)
#define MEZZO_MATH_FUNCTION(name)                         \
    MEZZO_HD float name(float x) { return ::name##f(x); } \
    MEZZO_HD double name(double x) { return ::name(x); }
#else
#define MEZZO_MATH_FUNCTION(name) \
    MEZZO_HD double name(double x) { return __builtin_##name(x); }
#endif
MEZZO_MATH_FUNCTION(exp)
MEZZO_MATH_FUNCTION(expm1)
MEZZO_MATH_FUNCTION(log)
MEZZO_MATH_FUNCTION(log1p)
MEZZO_MATH_FUNCTION(sin)
MEZZO_MATH_FUNCTION(cos)
MEZZO_MATH_FUNCTION(tanh)
MEZZO_MATH_FUNCTION(erf)
MEZZO_MATH_FUNCTION(erfc)
MEZZO_MATH_FUNCTION(floor)
MEZZO_MATH_FUNCTION(ceil)
MEZZO_MATH_FUNCTION(trunc)
MEZZO_MATH_FUNCTION(rint)
#undef MEZZO_MATH_FUNCTION

#if defined(__CUDA_ARCH__)
MEZZO_HD float sqrt(float x) { return ::sqrtf(x); }
MEZZO_HD double sqrt(double x) { return ::sqrt(x); }
MEZZO_HD float abs(float x) { return ::fabsf(x); }
MEZZO_HD double abs(double x) { return ::fabs(x); }
MEZZO_HD float pow(float x, float y) { return ::powf(x, y); }
MEZZO_HD double pow(double x, double y) { return ::pow(x, y); }
MEZZO_HD float fmod(float x, float y) { return ::fmodf(x, y); }
MEZZO_HD double fmod(double x, double y) { return ::fmod(x, y); }
MEZZO_HD float atan2(float y, float x) { return ::atan2f(y, x); }
MEZZO_HD double atan2(double y, double x) { return ::atan2(y, x); }
// Phi(x), the standard normal distribution function; erfc keeps the left tail's relative accuracy.
MEZZO_HD float normal_cdf(float x) { return 0.5f * ::erfcf(x * -0.70710678f); }
#else

MEZZO_HD float as_float(std::uint32_t u) { return __builtin_bit_cast(float, u); }
MEZZO_HD std::uint32_t as_bits(float x) { return __builtin_bit_cast(std::uint32_t, x); }
MEZZO_HD double as_double(std::uint64_t u) { return __builtin_bit_cast(double, u); }
MEZZO_HD std::uint64_t as_bits(double x) { return __builtin_bit_cast(std::uint64_t, x); }
MEZZO_HD float abs(float x) { return as_float(as_bits(x) & 0x7fffffffu); }
MEZZO_HD double abs(double x) { return __builtin_fabs(x); }
MEZZO_HD float copy_sign(float x, float s) { return as_float(as_bits(x) | (as_bits(s) & 0x80000000u)); }
MEZZO_HD float sqrt(float x) { return __builtin_sqrtf(x); }
MEZZO_HD double sqrt(double x) { return __builtin_sqrt(x); }
MEZZO_HD double pow(double x, double y) { return __builtin_pow(x, y); }
MEZZO_HD float floor(float x) { return __builtin_floorf(x); }
MEZZO_HD float ceil(float x) { return __builtin_ceilf(x); }
MEZZO_HD float trunc(float x) { return __builtin_truncf(x); }
MEZZO_HD float rint(float x) { return __builtin_rintf(x); }
MEZZO_HD float fmod(float x, float y) { return __builtin_fmodf(x, y); }
MEZZO_HD double fmod(double x, double y) { return __builtin_fmod(x, y); }
// Cephes' atanf of the smaller of |x| and |y| divided by the larger, moved to the right octant.
MEZZO_HD float atan2(float y, float x) {
    const float ax = abs(x), ay = abs(y), low = ax < ay ? ax : ay, high = ax < ay ? ay : ax;
    const float a = low == high ? (high == 0.0f ? 0.0f : 1.0f) : low / high;
    const bool steep = a > 0.41421356f;
    const float t = steep ? (a - 1.0f) / (a + 1.0f) : a, z = t * t;
    float p = z * 8.05374449538e-2f - 1.38776856032e-1f;
    p = p * z + 1.99777106478e-1f;
    p = p * z - 3.33329491539e-1f;
    float r = p * z * t + t;
    r = steep ? r + 0.785398163f : r;
    r = ax < ay ? 1.57079633f - r : r;
    r = as_bits(x) & 0x80000000u ? 3.14159265f - r : r;
    return x != x || y != y ? x + y : copy_sign(r, y);
}
MEZZO_HD double atan2(double y, double x) { return __builtin_atan2(y, x); }

// x = n ln 2 + r with |r| <= ln 2 / 2 (Cody and Waite): n ln 2 is subtracted in two parts, the first of them
// exact. scale_low * scale_high = 2^n; two factors, because the result may be subnormal.
struct ExpParts {
    float r, scale_low, scale_high;
};
MEZZO_HD ExpParts exp_parts(float x) {
    float y = x > 89.0f ? 89.0f : x;
    y = y < -104.0f ? -104.0f : y;
    const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, in the low bits
    const float rounded = y * 1.44269504f + magic;
    const std::int32_t n = std::int32_t(as_bits(rounded) - as_bits(magic));
    const float m = rounded - magic;
    const std::int32_t half = n >> 1;
    return {(y - m * 0.693359375f) + m * 2.12194440e-4f, as_float(std::uint32_t(half + 127) << 23),
            as_float(std::uint32_t(n - half + 127) << 23)};
}
// e^r - 1 for |r| <= ln 2 / 2: Cephes' expf polynomial.
MEZZO_HD float expm1_polynomial(float r) {
    float p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    return p * (r * r) + r;
}
MEZZO_HD float exp(float x) {
    const ExpParts e = exp_parts(x);
    return (expm1_polynomial(e.r) + 1.0f) * e.scale_low * e.scale_high;
}
MEZZO_HD float expm1(float x) {
    const ExpParts e = exp_parts(x);
    const float q = expm1_polynomial(e.r);
    const float scale = e.scale_low * e.scale_high;
    const float y = scale * q + (scale - 1.0f);
    const float large = (q + 1.0f) * e.scale_low * e.scale_high;  // scale is infinite from 2^128 on
    return x == 0.0f ? x : x > 80.0f ? large : y;
}

// n ln 2 + ln(1 + f) for 1 + f in [sqrt(1/2), sqrt 2), with the polynomial of Cephes' logf.
MEZZO_HD float log_of_parts(float f, float n) {
    const float z = f * f;
    float p = f * 7.0376836292e-2f - 1.1514610310e-1f;
    p = p * f + 1.1676998740e-1f;
    p = p * f - 1.2420140846e-1f;
    p = p * f + 1.4249322787e-1f;
    p = p * f - 1.6668057665e-1f;
    p = p * f + 2.0000714765e-1f;
    p = p * f - 2.4999993993e-1f;
    p = p * f + 3.3333331174e-1f;
    const float small = p * f * z - n * 2.12194440e-4f - z * 0.5f;
    return (f + small) + n * 0.693359375f;
}
// x = 2^e m with m in [sqrt(1/2), sqrt 2).
MEZZO_HD float log(float x) {
    const bool subnormal = x < 0x1p-126f;
    const std::uint32_t u = as_bits(subnormal ? x * 0x1p23f : x);
    const std::int32_t e = std::int32_t(u - 0x3f3504f3u) >> 23;
    const float f = as_float(u - (std::uint32_t(e) << 23)) - 1.0f;
    const float y = log_of_parts(f, float(e) - (subnormal ? 23.0f : 0.0f));
    const float special = x == 0.0f ? -__builtin_inff() : x < 0.0f ? __builtin_nanf("") : x;
    return x > 0.0f && x < __builtin_inff() ? y : special;
}
// 1 + x = 2^e m as in log(); m - 1 = 2^-e x + (2^-e - 1) is rounded once. 2^-e is a quarter of a number that
// is normal for e = 128, too.
MEZZO_HD float log1p(float x) {
    const std::uint32_t e = (as_bits(1.0f + x) - 0x3f3504f3u) & 0xff800000u;
    const float f = as_float(as_bits(x) - e) + (as_float(0x40800000u - e) * 0.25f - 1.0f);
    const float y = log_of_parts(f, float(std::int32_t(e)) * 0x1p-23f);
    const float special = x == -1.0f ? -__builtin_inff() : x < -1.0f ? __builtin_nanf("") : x;
    return x > -1.0f && x < __builtin_inff() && x != 0.0f ? y : special;
}

MEZZO_HD float tanh(float x) {
    const float a = abs(x), z = x * x;
    const float far = 1.0f - 2.0f / (exp(a + a) + 1.0f);
    float p = z * -5.70498872745e-3f + 2.06390887954e-2f;
    p = p * z - 5.37397155531e-2f;
    p = p * z + 1.33314422036e-1f;
    p = p * z - 3.33332819422e-1f;
    const float near = p * z * a + a;
    return copy_sign(a < 0.625f ? near : far, x);
}

// After N. Juffa: erf itself near zero, farther out 1 - exp of a polynomial for ln erfc. Both take t = |x|.
inline constexpr float erf_split = 0.927734375f;
MEZZO_HD float erf_near(float t) {
    const float s = t * t;
    float p = s * -5.96761703e-4f + 4.99119423e-3f;
    p = p * s - 2.67681349e-2f;
    p = p * s + 1.12819925e-1f;
    p = p * s - 3.76125336e-1f;
    p = p * s + 1.28379166e-1f;
    return p * t + t;
}
MEZZO_HD float erfc_far(float x) {
    const float t = x > 10.0f ? 10.0f : x;
    float p = (t * -1.72853470e-5f + 3.83197126e-4f) * (t * t) + (t * -3.88396438e-3f + 2.42546219e-2f);
    p = p * t - 1.06777877e-1f;
    p = p * t - 6.34846687e-1f;
    p = p * t - 1.28717512e-1f;
    return exp(p * t - t);
}
MEZZO_HD float erf(float x) {
    const float t = abs(x);
    return copy_sign(t > erf_split ? 1.0f - erfc_far(t) : erf_near(t), x);
}
// Phi(x). In the left tail its error is absolute, 1e-8, rather than relative.
MEZZO_HD float normal_cdf(float x) {
    const float t = abs(x) * 0.70710678f;
    const float tail = 0.5f * erfc_far(t), near = 0.5f * erf_near(t);
    const float far = x < 0.0f ? tail : 1.0f - tail;
    return t > erf_split ? far : x < 0.0f ? 0.5f - near : 0.5f + near;
}

// 2^y and log2 in double, to about 1e-12: the inner steps of float's pow, whose exponent multiplies the
// error.
MEZZO_HD double exp2_for_pow(double x) {
    double y = x > 1000.0 ? 1000.0 : x;
    y = y < -1000.0 ? -1000.0 : y;
    const double magic = 0x1.8p52;
    const double rounded = y + magic;
    const double r = (y - (rounded - magic)) * 0.693147180559945309;
    double p = r * (1.0 / 3628800) + 1.0 / 362880;
    p = p * r + 1.0 / 40320;
    p = p * r + 1.0 / 5040;
    p = p * r + 1.0 / 720;
    p = p * r + 1.0 / 120;
    p = p * r + 1.0 / 24;
    p = p * r + 1.0 / 6;
    p = p * r + 0.5;
    p = p * (r * r) + r + 1.0;
    return p * as_double((as_bits(rounded) + 1023u) << 52);
}
MEZZO_HD double log2_for_pow(double x) {  // x positive and normal
    const std::uint64_t u = as_bits(x) + (0x3ff0000000000000u - 0x3fe6a09e667f3bcdu);
    const double n = as_double(u >> 52 | 0x4330000000000000u) - (0x1p52 + 1023.0);
    const double m = as_double((u & 0x000fffffffffffffu) + 0x3fe6a09e667f3bcdu);
    const double s = (m - 1.0) / (m + 1.0), z = s * s;
    double p = z * (1.0 / 15) + 1.0 / 13;
    p = p * z + 1.0 / 11;
    p = p * z + 1.0 / 9;
    p = p * z + 1.0 / 7;
    p = p * z + 1.0 / 5;
    p = p * z + 1.0 / 3;
    return n + (p * z + 1.0) * s * 2.885390081777926815;
}
MEZZO_HD float pow(float x, float y) {
    const float inf = __builtin_inff(), magic = 8388608.0f;  // 2^23: no fraction from there on
    const float a = abs(x), ay = abs(y), half = ay * 0.5f;
    // Distances to the nearest integer: y is one if this is 0, and even if half of it is one too.
    const float rest = ay < magic ? ((ay + magic) - magic) - ay : 0.0f;
    const float half_rest = half < magic ? ((half + magic) - magic) - half : 0.0f;
    const bool usual = a > 0.0f && a < inf && a != 1.0f && y == y;
    const double e = exp2_for_pow(double(y) * log2_for_pow(double(usual ? a : 1.5f)));
    const float at_zero = y > 0.0f ? 0.0f : inf, at_inf = y > 0.0f ? inf : 0.0f;
    const float edge = a == 1.0f ? 1.0f : a == 0.0f ? at_zero : at_inf;
    float r = usual ? float(e) : edge;
    const float odd = rest == 0.0f ? half_rest : 0.0f;
    r = odd != 0.0f ? as_float(as_bits(r) | (as_bits(x) & 0x80000000u)) : r;
    const float below = x < 0.0f && x > -inf ? rest : 0.0f;
    r = below != 0.0f ? __builtin_nanf("") : r;
    r = x != x || y != y ? x + y : r;
    return y == 0.0f || x == 1.0f ? 1.0f : r;
}

// sin(x + quarters * pi / 2), reduced in double by pi / 2 in three parts of which two multiply exactly.
MEZZO_HD float sin_shifted(float x, std::uint32_t quarters) {
    const double magic = 0x1.8p52, d = double(x);
    const double rounded = d * 0.636619772367581343 + magic, n = rounded - magic;
    const double r =
        ((d - n * 1.57079632673412561417) - n * 6.07710050630396597660e-11) - n * 2.02226624879595063154e-21;
    const std::uint32_t q = std::uint32_t(as_bits(rounded)) + quarters;
    const float f = float(r), z = f * f;
    float s = z * -1.9515295891e-4f + 8.3321608736e-3f;
    s = s * z - 1.6666654611e-1f;
    s = s * z * f + f;
    float c = z * 2.443315711809948e-5f - 1.388731625493765e-3f;
    c = c * z + 4.166664568298827e-2f;
    c = c * z * z - 0.5f * z + 1.0f;
    return as_float(as_bits((q & 1u) != 0 ? c : s) ^ (q & 2u) << 30);
}
MEZZO_HD float sin(float x) { return x == 0.0f ? x : sin_shifted(x, 0); }
MEZZO_HD float cos(float x) { return sin_shifted(x, 1); }
#endif

MEZZO_HD double normal_cdf(double x) { return 0.5 * erfc(x * -0.70710678118654752440); }

// a - b floor(a / b). If the quotient is small, its product with b is exact in double. A result next to b may
// round to b, as in PyTorch and NumPy.
template <class T> MEZZO_HD T floor_mod(T a, T b) {
#if !defined(__CUDA_ARCH__)
    if constexpr (sizeof(T) == 4) {
        const double n = double(a), d = double(b), q = floor(n / d);
        if (abs(q) < 0x1p28 && abs(d) < 0x1p200) {
            const double r = n - q * d;  // off by d where the quotient was rounded up to the next integer
            return T(r != 0.0 && (r < 0.0) != (d < 0.0) ? r + d : r);
        }
    }
#endif
    const T r = fmod(a, b);
    return r != T(0) && (r < T(0)) != (b < T(0)) ? r + b : r;
}

// 1 / (1 + e^-x), from e^-|x| so that nothing overflows.
template <class T> MEZZO_HD T sigmoid(T x) {
    const T e = exp(-abs(x));
    return (x < T(0) ? e : T(1)) / (T(1) + e);
}

}  // namespace math
MEZZO_FUNCTORS_CLOSE
}  // namespace mezzo::functors
