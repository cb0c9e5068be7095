// The kernels of a mean that is added in the order of the ranks (core/device_collectives.h). All elements are
// contiguous.
#pragma once

#include <cstdint>

#include "mezzo/dtype.h"

namespace mezzo::cuda {

// to[i] = from[i] * factor, rounded to the dtype of `to`; from is float32.
void pack_shares(const void* from, void* to, std::int64_t count, Dtype dtype, float factor);
// to[i] = (pieces[0][i] + pieces[1][i] + ...) * factor, added in float32 in that order and rounded once.
void add_pieces(const void* pieces, int ranks, void* to, std::int64_t count, Dtype dtype, float factor);
// to[i] = from[i] as float32.
void widen(const void* from, void* to, std::int64_t count, Dtype dtype);

}  // namespace mezzo::cuda
