// dropout with a given place in the random stream, for ops that contain a dropout.
#pragma once

#include "ops/common.h"

namespace mezzo {

// Throws Error(value) unless p is in [0, 1).
void check_dropout(const char* op, double p);

// Takes the random numbers of a dropout over `elements` elements from the random stream. Returns where they
// begin.
RandomState reserve_dropout(std::int64_t elements);

// x with elements dropped with probability p, or x itself if p is 0. The same place in the stream gives the
// same mask.
Tensor dropout_at(const Tensor& x, double p, const RandomState& stream);

}  // namespace mezzo
