// Training steps whose graphs have parallel branches, and what they compute.
#pragma once

#include <functional>
#include <vector>

#include "mezzo/mezzo.h"

namespace mezzo::test {

struct BranchStep {
    cuda::StepFunction step;
    std::function<Tensors(int)> inputs;  // of call i
    Tensors state;                       // compared at the end
};

struct BranchCase {
    const char* name;
    std::size_t branches;  // that its graph has
    std::function<BranchStep()> make;
};
const std::vector<BranchCase>& branch_cases();

struct BranchRun {
    std::vector<std::vector<double>> values;  // results of all calls, and the state
    cuda::CaptureStatistics statistics;
};

enum class Way { eager, captured, branches };
constexpr int branch_calls = 6;  // two warm-up runs, a capture, three replays
BranchRun run_branch_case(const BranchCase& c, Way way);

}  // namespace mezzo::test
