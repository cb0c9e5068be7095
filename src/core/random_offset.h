// The process-wide random stream: one Philox key and an offset that grows.
#pragma once

#include <cstdint>

#include "mezzo/device.h"

namespace mezzo {

// Reserves the next `blocks` 128-bit Philox blocks for the caller and returns where they start. A tensor of n
// elements takes ceil(n / 4) blocks for uniform, normal and integers, ceil(n / 8) for dropout (core/philox.h
// says which element takes which word).
RandomState reserve_random(std::uint64_t blocks);
// Returns reserved blocks to the stream, unless more blocks have been reserved since.
void return_random(RandomState start, std::uint64_t blocks);

// Calls use(start) with the next `blocks` blocks of the stream, which are returned if it throws.
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
