// Numbers as float8 codes and scales, as products under Autocast with AutocastOptions::fp8 read them.
//
//   const Quantized q = quantize(x);           // x [64, 128] in float8_e4m3fn, one scale
//   const Tensor y = dequantize(q, bfloat16);  // codes / scale
#pragma once

#include "mezzo/matmul_precision.h"
#include "mezzo/tensor.h"

#pragma GCC visibility push(default)

namespace mezzo {

struct QuantizeOptions {
    Dtype dtype = float8_e4m3fn;  // or float8_e5m2
    Granularity granularity = Granularity::tensor;
    // Scales that use all of the dtype's range, instead of the next smaller power of two. With powers of two
    // scaling is exact, so the codes of x and of 2^n x are equal. Not with Granularity::block32.
    bool exact_scale = false;
};
struct Quantized {
    Tensor codes;  // of x's shape, in options.dtype
    // float32, of x's shape with size 1 in each dimension that shares it. With Granularity::block32 the last
    // dimension has x.size(-1) / 32 scales.
    Tensor scale;
    // 1 / scale. With Granularity::block32 in float8_e8m0fnu: the factors of the MX formats. Otherwise in
    // float32, and undefined unless a device's kernel has computed it for products.
    Tensor inverse = {};
};
// codes = x scale, rounded to nearest even, where scale is top / max |x| rounded down to a power of two
// between 2^-126 and 2^126, and top is the dtype's largest number, 448 or 57344. The scale is 1 for elements
// that are all zero and next to one that is not finite. Infinities become NaN: E4M3 has none, and its largest
// number would hide an overflow from GradScaler. x is floating; computed in float32, without gradient. The
// host does not wait for the device. Error(dtype) for other dtypes, Error(shape) for blocks of a last
// dimension that is no multiple of 32, or for rows or blocks of a tensor without dimensions.
[[nodiscard]] Quantized quantize(const Tensor& x, const QuantizeOptions& options = {});
// codes / scale in float32, rounded to the dtype; finite numbers stay finite in float16.
[[nodiscard]] Tensor dequantize(const Quantized& q, Dtype dtype = float32);

}  // namespace mezzo

#pragma GCC visibility pop
