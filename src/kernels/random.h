// Kernels that draw random numbers. `stream` is the state from which they begin: Philox key (seed) and block
// (offset). core/philox.h says which element takes which bits.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/kernel.h"
#include "mezzo/device.h"
#include "mezzo/dtype.h"

namespace mezzo::kernels {

// No input -> uniform in [low, high).
struct RandomUniform {
    static constexpr const char* name = "random_uniform";
    double low = 0, high = 1;
    RandomState stream = {};
};
// The largest number of `dtype` below at.high, or at.low if that is larger: no result is above it. Without it
// a result that is rounded to the dtype might be at.high.
inline double uniform_limit(const RandomUniform& at, Dtype dtype) {
    if (!std::isfinite(at.high)) return at.high;
    const DtypeInfo& info = dtype_info(dtype);
    int exponent = 0;
    const double fraction = std::frexp(at.high, &exponent);
    if (fraction == 0.5) --exponent;  // the numbers below a power of two are denser
    const int least = 3 - (1 << (info.exponent_bits - 1)) - info.significand_bits;  // of subnormal numbers
    const int place = at.high == 0 ? least : std::max(exponent - info.significand_bits, least);
    const double step = std::ldexp(1.0, place);
    return std::max(at.low, (std::ceil(at.high / step) - 1) * step);
}
// No input -> normal.
struct RandomNormal {
    static constexpr const char* name = "random_normal";
    double mean = 0, stddev = 1;
    RandomState stream = {};
};
// No input -> integers in [low, high), at most 2^32 of them.
struct RandomInt {
    static constexpr const char* name = "random_int";
    std::int64_t low = 0, high = 1;
    RandomState stream = {};
};
// x -> 0 with probability p (rounded to a multiple of 2^-16), otherwise x / (1 - p).
struct Dropout {
    static constexpr const char* name = "dropout";
    double p = 0;
    RandomState stream = {};
};

}  // namespace mezzo::kernels
