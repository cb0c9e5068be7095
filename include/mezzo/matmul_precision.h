// Accuracy of products of float32 matrices.
//
//   set_float32_matmul_precision(Float32MatmulPrecision::high);
//   y = matmul(x, weight);  // TF32 on CUDA
#pragma once

#include "mezzo/cpp20.h"

#include <cstdint>

#pragma GCC visibility push(default)

namespace mezzo {

// Permitted arithmetic for float32 operands of matrix products, as in PyTorch's setting of the same name:
//   highest  float32 arithmetic throughout.
//   high     On CUDA: operands rounded to TF32 (11 significant bits). On CPUs with AMX: operands split into
//            three bfloat16 parts and six products of them, as accurate as float32 arithmetic for numbers of
//            magnitude 2e-31 and more; smaller ones lose bits.
//   medium   On CUDA: TF32. On CPUs with AMX: two bfloat16 parts, 16 significant bits, and three products.
// Sums are always float32. All levels are `highest` if the others are no faster: few rows or columns,
// operands of mixed types, other processors. docs/guide/numerics.md has the measured errors. 16-bit and
// float64 operands are not affected.
enum class Float32MatmulPrecision : std::uint8_t { highest, high, medium };

// Sets the precision of all later products in this process, from any thread. The default is `highest`.
void set_float32_matmul_precision(Float32MatmulPrecision precision);
[[nodiscard]] Float32MatmulPrecision float32_matmul_precision();

}  // namespace mezzo

#pragma GCC visibility pop
