// Data-parallel training over graphs of all kinds, on emulated devices over the stand-in for NCCL.
#include <catch2/catch.hpp>

#include "tests/distributed/device_groups.h"
#include "tests/distributed/graph_cases.h"

using namespace mezzo::test;

TEST_CASE("nccl graphs: of all kinds", "[distributed]") {
    for (const GraphCase& c : graph_cases()) DYNAMIC_SECTION(c.name) {
            for (const Timing& timing : timings) {
                CAPTURE(timing.late_work, timing.early_communication);
                const Devices devices(3);
                set_timing(timing);
                c.check(Where::devices);
                CHECK(mezzo::emulation::nccl_report().violations == "");
                CHECK(mezzo::emulation::nccl_report().communicators == 0);
            }
        }
}
