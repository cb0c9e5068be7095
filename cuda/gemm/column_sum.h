// Column sums of a row-major matrix: gradients of biases.
#pragma once

#include <cstdint>

#include "mezzo/dtype.h"

namespace mezzo::cuda {

// out[j] = the sum of column j of x [rows, cols], which has no gaps and is floating; 0 without rows. Sums in
// float32, float64 for float64, in an order that depends on the sizes and the device only. One launch.
void sum_columns(const void* x, Dtype dtype, std::int64_t rows, std::int64_t cols, void* out,
                 Dtype out_dtype);

}  // namespace mezzo::cuda
