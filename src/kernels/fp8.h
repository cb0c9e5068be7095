// Quantization to float8 codes, and products of codes. Only backends of GPUs have these kernels.
#pragma once

#include "kernels/activation.h"
#include "kernels/kernel.h"

namespace mezzo::kernels {

// x [rows, cols], contiguous, float32 or 16 bit -> codes [rows, cols] in float8, float32 scales, and their
// inverses, by the formulas of quantize(). One scale, or with by_row one for each row. With one scale a
// fourth result gets the codes of the transposed matrix [cols, rows], and the first one may be undefined.
struct Quantize {
    static constexpr const char* name = "quantize";
    static constexpr bool any_dtype = true;
    Dtype dtype = float8_e4m3fn;
    bool by_row = false, exact = false;
};
// Codes a [m, k] and b [n, k], contiguous and not both in E5M2, the inverses of their scales, one each or
// with by_row m and n, and a bias [n] of the result's dtype or undefined -> activation(z) [m, n], where z = a
// b^T inverse_a inverse_b + bias, in float32 or 16 bit. A second result gets z.
struct Fp8Product {
    static constexpr const char* name = "fp8_product";
    static constexpr bool any_dtype = true;
    Activation activation = Activation::none;
    bool by_row = false;
};

}  // namespace mezzo::kernels
