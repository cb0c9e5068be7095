// What lies in a tensor: how large its elements are, and how many have left the range of their dtype. For those who
// look for overflows; no graph records it.
#pragma once

namespace mezzo::kernels {

// in: x, floating and contiguous. out: float64 [4], to which x is added: the largest finite |x|, and how many
// elements are infinite, NaN and zero.
struct RangeStatistics {
    static constexpr const char* name = "range_statistics";
};

// in: x, floating and contiguous. out: int64 [bins]: how many elements have 2^e <= |x| < 2^(e + 1), for each e from
// `lowest` on. Zeros, infinities and NaN are in none.
struct ExponentCounts {
    static constexpr const char* name = "exponent_counts";
    static constexpr int lowest = -1074, highest = 1023, bins = highest - lowest + 1;
};

}  // namespace mezzo::kernels
