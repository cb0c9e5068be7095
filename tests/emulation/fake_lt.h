// What tests may ask of the stand-in for cuBLASLt, and what it saw.
#pragma once

#include <cstddef>

#include "cuda/lt.h"

namespace mezzo::emulation {

struct FakeLt {
    bool no_fused = false;      // no algorithm for any epilogue but none
    bool no_algorithm = false;  // no algorithm at all
    int failing = 0;            // the first this many candidates do not execute
    int dropping_tail = 0;      // the first this many candidates drop the last k % 32 terms
    std::size_t workspace = 0;  // bytes the candidates ask for

    int plans = 0, heuristics = 0, runs = 0, failed_runs = 0;
    int last_algorithm = -1;         // candidate number of the last run that succeeded
    cuda::lt::Problem last_problem;  // of the last run that succeeded
    const void* last_workspace = nullptr;
};
inline FakeLt fake_lt;

}  // namespace mezzo::emulation
