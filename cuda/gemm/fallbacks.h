// Counts of matrix products that the GEMM library should have computed and did not: otherwise only the time
// shows them.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/gemm_plan.h"

namespace mezzo::cuda {

struct Gemm;

struct GemmFallbacks {
    // Products that mezzo's own plain kernel computed, because the library does not take them or has no
    // algorithm that is right and executes. Products of no terms (k = 0) do not count.
    std::uint64_t products = 0;
    // How often the library reported a description or a call as invalid. This is another status than that for
    // a product without an algorithm: a descriptor is wrong, or the product is beyond a limit that gemm()
    // does not check.
    std::uint64_t invalid = 0;
    std::string
        last;  // the product of the last of either kind, and the library's status; "" if there is none
};

// Counts of this process so far.
GemmFallbacks gemm_fallbacks();

void count_fallback(const Gemm& g, const std::string& reason);
// Scope in which this thread times algorithms. Calls that the library reports as invalid do not count in it:
// they reject an algorithm, and do not show a wrong descriptor.
class [[nodiscard]] Trials {
public:
    Trials();
    ~Trials();
    Trials(const Trials&) = delete;
    Trials& operator=(const Trials&) = delete;

private:
    const bool outer_;
};
void count_invalid_problem(const gemm_plan::Problem& p, const std::string& reason);

}  // namespace mezzo::cuda
