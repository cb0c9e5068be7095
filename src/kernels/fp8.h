// Quantization to float8 codes, and products of codes. Only backends of GPUs have the products.
#pragma once

#include <cfloat>
#include <cstring>

#include "kernels/activation.h"
#include "kernels/functor_math.h"
#include "kernels/kernel.h"
#include "mezzo/matmul_precision.h"

namespace mezzo::kernels {

// Consecutive elements with one scale, of Granularity::block32.
inline constexpr int fp8_block = 32;

// x [rows, cols], contiguous, float32 or 16 bit -> codes [rows, cols] in float8, float32 scales, and their
// inverses, by the formulas of quantize(). One scale, or one for each row. On GPUs also one for each
// fp8_block elements of a row; the inverses are then in float8_e8m0fnu.
//
// On GPUs, but not with scales of rows: a fourth result gets the codes of the transposed matrix [cols, rows],
// and with scales of blocks a fifth and a sixth one their scales and inverses. Results of a matrix that is
// not wanted are undefined.
//
// With one scale, on any device: a second operand, one number, is the magnitude that the scale is for, unless
// it is 0; larger elements saturate. A fifth result gets the largest magnitude.
struct Quantize {
    static constexpr const char* name = "quantize";
    static constexpr bool any_dtype = true;
    Dtype dtype = float8_e4m3fn;
    Granularity granularity = Granularity::tensor;
    bool exact = false;
    float factor = 1;  // of the largest scale: 2^-margin
};

// The scale of elements up to `top`, for codes up to `largest`.
MEZZO_HD float fp8_scale(float top, float largest, bool exact, float factor) {
    if (!(top > 0) || !(top <= FLT_MAX)) return 1;
    const float least = largest * 0x1p-126f;
    float ratio = largest / (top < least ? least : top) * factor;
    ratio = ratio < 0x1p-126f ? 0x1p-126f : ratio > 0x1p126f ? 0x1p126f : ratio;
    if (exact) return ratio;
    unsigned bits = 0;
    std::memcpy(&bits, &ratio, sizeof bits);
    bits &= 0x7f800000u;
    std::memcpy(&ratio, &bits, sizeof bits);
    return ratio;
}
// Codes a [m, k] and b [n, k], contiguous and not both in E5M2, the inverses of their scales, and a bias [n]
// of the result's dtype or undefined -> activation(z) [m, n], where z = a b^T inverse_a inverse_b + bias, in
// float32 or 16 bit. A second result gets z. There is one inverse each, or there are m and n of them, or
// those of blocks [m, k / fp8_block] and [n, k / fp8_block] in float8_e8m0fnu.
struct Fp8Product {
    static constexpr const char* name = "fp8_product";
    static constexpr bool any_dtype = true;
    Activation activation = Activation::none;
    Granularity scales = Granularity::tensor;
};

}  // namespace mezzo::kernels
