// Approximations of elementary functions by one or two GPU instructions each, and GELUs for 16-bit results
// that are built from them.
#pragma once

#include <cmath>

#include "cuda/kernel.cuh"

namespace mezzo::cuda {

#if defined(__CUDACC__)
// 2^x to about 2 ulp; 0 for -inf, subnormal results become 0.
__device__ inline float exp2_approximate(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// 1 / x to about 1 ulp; subnormal results become 0.
__device__ inline float reciprocal_approximate(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#else
inline float exp2_approximate(float x) { return std::exp2(x); }
inline float reciprocal_approximate(float x) { return 1 / x; }
#endif

// GELUs for results that are rounded to 16 bit. Before that rounding their error is less than 0.03 ulp of
// float16 and 0.02 ulp of bfloat16, for every argument, the left tail included; results below 1e-36 may
// become 0.

// x Phi(x). For x < 0 Phi is 2^p(-x), where p was fitted to its binary logarithm down to -13.2, with a
// relative error of Phi of 2^-16.6 down to -6 and 2^-14.6 from there on. Beyond, p falls faster, and the
// power is 0.
__device__ inline float gelu_approximate(float x) {
    const float t = std::fabs(x);
    float p = -2.19728635e-09f;
    p = std::fma(p, t, 1.56291733e-07f);
    p = std::fma(p, t, -4.88862406e-06f);
    p = std::fma(p, t, 8.91135132e-05f);
    p = std::fma(p, t, -0.00106179214f);
    p = std::fma(p, t, 0.00884556305f);
    p = std::fma(p, t, -0.0543944612f);
    p = std::fma(p, t, -0.458251357f);
    p = std::fma(p, t, -1.15124297f);
    p = std::fma(p, t, -1.00000846f);
    const float tail = exp2_approximate(p);
    return x * (x < 0 ? tail : 1 - tail);
}

// x / (1 + e^-2u), which is 0.5 x (1 + tanh(u)), with u = sqrt(2/pi) (x + 0.044715 x^3).
__device__ inline float gelu_tanh_approximate(float x) {
    constexpr float linear = -2.30220821f, cubic = linear * 0.044715f;  // linear: -2 sqrt(2/pi) log2(e)
    return x * reciprocal_approximate(1 + exp2_approximate(x * std::fma(cubic * x, x, linear)));
}

}  // namespace mezzo::cuda
