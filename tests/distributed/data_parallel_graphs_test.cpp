// Data-parallel training over graphs of all kinds, in host memory. nccl_graphs_test.cpp runs the same on
// devices.
#include <catch2/catch.hpp>

#include "tests/distributed/graph_cases.h"

using namespace mezzo::test;

TEST_CASE("data parallel graphs: of all kinds", "[distributed]") {
    for (const GraphCase& c : graph_cases()) DYNAMIC_SECTION(c.name) {
            c.check(Where::host);
        }
}
