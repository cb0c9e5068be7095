// Kernels that draw random numbers. `stream` is where these begin: Philox key (seed) and block (offset).
// core/philox.h says which element takes which bits.
#pragma once

#include <cstdint>

#include "kernels/kernel.h"
#include "mezzo/device.h"

namespace mezzo::kernels {

// No input -> uniform in [low, high).
struct RandomUniform {
    static constexpr const char* name = "random_uniform";
    double low = 0, high = 1;
    RandomState stream = {};
};
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
