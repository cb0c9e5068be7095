// Kernels that count inf, NaN and zero, find the largest magnitude of a tensor, and count its exponents, for
// the search for overflows. No graph records them.
#pragma once

#include "core/internal.h"

namespace mezzo::kernels {

// in: x, floating and contiguous. out: float64 [4], updated by x: the largest finite |x|, and the numbers of
// elements that are infinite, NaN and zero.
struct MEZZO_INTERNAL RangeStatistics {
    static constexpr const char* name = "range_statistics";
};

// in: x, floating and contiguous. out: int64 [bins]: the number of elements with 2^e <= |x| < 2^(e + 1), for
// each e from `lowest` on. Zeros, infinities and NaN are not counted.
struct MEZZO_INTERNAL ExponentCounts {
    static constexpr const char* name = "exponent_counts";
    static constexpr int lowest = -1074, highest = 1023, bins = highest - lowest + 1;
};

}  // namespace mezzo::kernels
