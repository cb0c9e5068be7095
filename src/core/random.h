// The process-wide random stream: one Philox key and a position that moves forward.
#pragma once

#include <cstdint>

#include "mezzo/device.h"

namespace mezzo {

// Takes the next `blocks` 128-bit Philox blocks for the caller alone and returns where they start. What a
// tensor of n elements takes: ceil(n / 4) for uniform, normal and integers, ceil(n / 8) for dropout
// (core/philox.h says which element takes which word).
RandomState reserve_random(std::uint64_t blocks);
// Gives them back, unless somebody has taken blocks since.
void return_random(RandomState start, std::uint64_t blocks);

// use(start) with the next `blocks` blocks of the stream, which are given back if it throws.
template <class F> auto with_random(std::uint64_t blocks, const F& use) {
    const RandomState start = reserve_random(blocks);
    try {
        return use(start);
    } catch (...) {
        return_random(start, blocks);
        throw;
    }
}

}  // namespace mezzo
