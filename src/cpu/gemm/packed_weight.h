// Packed copies of the weights of linear() for products of few rows, whose time is that of reading the weight.
//
// A weight [n, k] lies in panels of 16 rows, of which the last is filled up with zeros; so is k up to a multiple
// of 4. A panel is read in the order in which its elements lie:
//
//   float32, float16   [n / 16][k][16]
//   bfloat16           [n / 16][k / 2][16][2]
//
// Rows of 768 bfloat16 come from memory at two thirds of its speed, panels at its full speed: one stream, and no
// sums across the lanes of a vector.
#pragma once

#include <cstdint>

#include "core/tensor_impl.h"

namespace mezzo::cpu {

// The packed copy of a weight for a product of `rows` rows. Makes it if the thread is in an InferenceMode and
// there is none, or an older one. Null without that scope, for many rows, for a weight that is small, not all of
// its storage or not contiguous, and for float64. Throws Error(memory).
Ref<Storage> packed_weight(const Tensor& weight, std::int64_t rows);

// The panels of a packed copy.
const void* panels_of(const Storage& packed);

}  // namespace mezzo::cpu
