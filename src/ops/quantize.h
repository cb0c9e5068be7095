// Parts of quantize(), for products that choose the scale themselves.
#pragma once

#include "mezzo/quantize.h"

namespace mezzo {

// max |x| of each group that shares a scale, with size 1 in the dimensions that share it. NaN wins.
Tensor largest_magnitude(const Tensor& x, Granularity granularity);

// quantize() of a float32 x with the scale of groups whose largest elements are `largest`, divided by
// 2^margin. Larger elements saturate.
Quantized quantized_for(const Tensor& x, const Tensor& largest, const QuantizeOptions& options,
                        double margin = 0);

}  // namespace mezzo
