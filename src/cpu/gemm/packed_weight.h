// Packed copies of the weights of linear(), for products of few rows: their time is that of reading the
// weight.
//
// A weight [n, k] lies in panels of 16 rows. The last panel is filled up with zeros, and so is k up to a
// multiple of 4. A panel is read in the order in which its elements lie:
//
//   float32, float16   [n / 16][k][16]
//   bfloat16           [n / 16][k / 2][16][2]
//
// Rows of 768 bfloat16 are short streams from memory, and their products need sums across the lanes of a
// vector. Panels are one long stream and need none.
#pragma once

#include <cstdint>

#include "core/tensor_impl.h"

namespace mezzo::cpu {

// Returns the packed copy of a weight for a product of `rows` rows. If the thread is in an InferenceMode
// and the copy is missing or out of date, makes it, but not at the first use of the weight's version: weights
// that are computed for each call are not worth a copy. Returns null then, outside of that scope, for more
// than 8 rows, for a weight of fewer than 2^16 elements or 64 outputs, for one that padding makes larger by
// more than an eighth, for a view, for one that is not contiguous, and for float64. Throws Error(memory).
Ref<Storage> packed_weight(const Tensor& weight, std::int64_t rows);

// The panels of a packed copy.
const void* panels_of(const Storage& packed);

}  // namespace mezzo::cpu
