// dropout with a given place in the random stream, for ops that contain one.
#pragma once

#include "ops/common.h"

namespace mezzo {

// Throws unless p is in [0, 1).
void check_dropout(const char* op, double p);

// Attributes alpha (= p), seed and offset for a dropout over `elements` elements, taken from the random
// stream.
Attrs reserve_dropout(double p, std::int64_t elements);

// x with dropped elements as the attributes say: same attributes, same mask.
Tensor dropout_at(const Tensor& x, const Attrs& at);

}  // namespace mezzo
