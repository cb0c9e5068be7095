// Parts of 8-bit weights (mezzo/quantize.h) that several ops share.
#pragma once

#include "kernels/activation.h"
#include "ops/common.h"

namespace mezzo {

// linear() of an 8-bit weight (is_quantized()); checks the arguments in the name of `op`.
Tensor linear_quantized(const char* op, const Tensor& x, const Tensor& weight, const Tensor& bias,
                        Activation activation);

// codes of any shape times a scale of the same number of dimensions, of which each divides that of the codes,
// in float32.
Tensor scaled_codes(const Tensor& codes, const Tensor& scale);

}  // namespace mezzo
