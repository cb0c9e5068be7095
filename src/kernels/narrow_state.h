// Storage of an optimizer's float32 numbers in less than 32 bits, for every device.
#pragma once

#include "kernels/functor_math.h"

namespace mezzo::functors {
MEZZO_FUNCTORS_OPEN

MEZZO_HD float number_of(std::uint32_t bits) { return __builtin_bit_cast(float, bits); }
MEZZO_HD std::uint32_t bits_of(float x) { return __builtin_bit_cast(std::uint32_t, x); }

// A float32 number as two halves: `high` is the number as bfloat16, rounded to nearest, ties away from zero,
// and `low` the signed rest, so that its bits are (high << 16) + low modulo 2^32. Unlike with ties to even,
// every number has exactly one such pair. NaN is stored as 0x7fc00000.
struct Halves {
    std::uint16_t high, low;
};
MEZZO_HD Halves halves_of(std::uint32_t bits) {
    const std::uint32_t u = (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc00000u : bits;
    return {static_cast<std::uint16_t>((u + 0x8000u) >> 16), static_cast<std::uint16_t>(u)};
}
MEZZO_HD std::uint32_t joined(std::uint16_t high, std::uint16_t low) {
    return (std::uint32_t(high) << 16) + low - ((low & 0x8000u) << 1);
}

MEZZO_FUNCTORS_CLOSE
}  // namespace mezzo::functors
