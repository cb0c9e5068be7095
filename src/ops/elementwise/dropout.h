// dropout at a given offset in the random stream, for ops that contain a dropout.
#pragma once

#include "core/random_offset.h"
#include "ops/common.h"

namespace mezzo {

// Throws Error(value) unless p is in [0, 1).
void check_dropout(const char* op, double p);

// Calls use(start) with random numbers for a dropout over `elements` elements (with_random()).
template <class F> auto with_dropout_stream(std::int64_t elements, const F& use) {
    return with_random((std::uint64_t(elements) + 7) / 8, use);
}

// x with elements dropped with probability p, or x itself if p is 0. The same state of the stream gives the
// same mask.
Tensor dropout_at(const Tensor& x, double p, const RandomState& stream);

}  // namespace mezzo
