// Contiguous tensors that lie directly behind each other in memory (a flat parameter), so that a kernel can
// take them as one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/internal.h"
#include "mezzo/tensor.h"

namespace mezzo {

// The tensors as one [sum of their first sizes, other sizes...] on the same memory, without history.
// Undefined unless all are contiguous, of one dtype, with elements and the same other sizes, and each begins
// where the one before it ends, in one storage or in parts of one storage (part_of). Neighbours by chance do
// not count.
Tensor as_one(std::span<const Tensor> tensors);

// Whether as_one({first, second}) is defined but for the sizes.
MEZZO_INTERNAL bool directly_behind(const Tensor& first, const Tensor& second);

// The reverse: a contiguous tensor cut along its first dimension into tensors of these sizes, each with a
// storage of its own, so that it has its own version and can be written or replaced alone.
std::vector<Tensor> cut_side_by_side(const Tensor& whole, std::span<const std::int64_t> sizes);

}  // namespace mezzo
