// Matrix products that the GEMM library should have computed and did not: nothing else shows them but the
// time.
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
    // How often the library called a description or a call invalid, which is not what it says to a product
    // that it has no algorithm for: a descriptor is wrong, or the product is beyond a limit that gemm() does
    // not know.
    std::uint64_t invalid = 0;
    std::string
        last;  // the product of the last of either kind, and the library's status; "" if there is none
};

// Of this process so far.
GemmFallbacks gemm_fallbacks();

void count_fallback(const Gemm& g, const std::string& reason);
// While it exists, this thread times algorithms. One that the library then calls invalid is passed over, and
// is no sign of a wrong descriptor: it does not count.
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
