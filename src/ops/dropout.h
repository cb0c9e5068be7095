// dropout with a given place in the random stream, for ops that contain one.
#pragma once

#include "ops/common.h"

namespace mezzo {

// Throws unless p is in [0, 1).
void check_dropout(const char* op, double p);

// Where the random numbers of a dropout over `elements` elements begin, taken from the random stream.
RandomState reserve_dropout(std::int64_t elements);

// x with elements dropped with probability p, x itself for 0: same place in the stream, same mask.
Tensor dropout_at(const Tensor& x, double p, const RandomState& stream);

}  // namespace mezzo
