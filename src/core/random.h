// The process-wide random stream: one Philox key and a position that only moves forward.
#pragma once

#include <cstdint>

#include "mezzo/device.h"

namespace mezzo {

// Takes the next `blocks` 128-bit Philox blocks for the caller alone and returns where they start. What a
// tensor of n elements takes: ceil(n / 4) for uniform, normal and integers, ceil(n / 8) for dropout
// (core/philox.h says which element takes which word).
RandomState reserve_random(std::uint64_t blocks);

}  // namespace mezzo
