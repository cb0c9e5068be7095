// Graphs with parallel branches on the CUDA device, real or emulated: the numbers of eager calls, bit for
// bit.
#include <catch2/catch.hpp>

#include "tests/branch_cases.h"

using namespace mezzo;

TEST_CASE("branches: captured with branches, without, and eager are the same", "[cuda]") {
    if (cuda_device_count() == 0) {
        WARN("no CUDA device: skipped");
        return;
    }
    for (const test::BranchCase& c : test::branch_cases()) {
        CAPTURE(c.name);
        const test::BranchRun eager = run_branch_case(c, test::Way::eager);
        const test::BranchRun plain = run_branch_case(c, test::Way::captured);
        const test::BranchRun branches = run_branch_case(c, test::Way::branches);
        CHECK((plain.values == eager.values));
        CHECK((branches.values == eager.values));
        CHECK(branches.statistics.replays == test::branch_calls - 3);
        CHECK(plain.statistics.parallel_branches == 0);
        CHECK(branches.statistics.parallel_branches == c.branches);
    }
}
