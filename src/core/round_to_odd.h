// Rounding to odd: a number between two neighbouring floats becomes the one whose last bit is 1. Rounding the
// result again to a 16-bit dtype gives the same as rounding once. For the host and for device code.
#pragma once

#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define MEZZO_ROUNDING static __host__ __device__ __forceinline__
#else
#define MEZZO_ROUNDING static inline
#endif

namespace mezzo {

MEZZO_ROUNDING float round_to_odd(double x) {
    const float f = static_cast<float>(x);
    const double back = static_cast<double>(f);
    if (back == x || x != x) return f;
    std::uint32_t bits;
    std::memcpy(&bits, &f, sizeof bits);
    if ((back < 0 ? -back : back) > (x < 0 ? -x : x)) --bits;
    bits |= 1u;
    float odd;
    std::memcpy(&odd, &bits, sizeof odd);
    return odd;
}

// A double holds integers of up to 53 bits. Of larger ones the last 11 bits become one that says whether any
// of them was 1.
MEZZO_ROUNDING float round_to_odd(std::int64_t x) {
    constexpr std::int64_t exact = std::int64_t(1) << 53;
    if (x >= -exact && x <= exact) return round_to_odd(static_cast<double>(x));
    const std::uint64_t size = x < 0 ? 0 - static_cast<std::uint64_t>(x) : static_cast<std::uint64_t>(x);
    const std::uint64_t rest = (size & 2047u) != 0 ? 1 : 0;
    const double odd = static_cast<double>((size >> 11 | rest) << 11);
    return round_to_odd(x < 0 ? -odd : odd);
}

}  // namespace mezzo

#undef MEZZO_ROUNDING
