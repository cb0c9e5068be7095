// Data-parallel training over graphs of all kinds: accumulation, several losses, unused, shared and frozen
// parameters, checkpointed segments.
#pragma once

#include <vector>

namespace mezzo::test {

// Location of the ranks' models and data, which decides how gradients travel.
enum class Where { host, devices };

struct GraphCase {
    const char* name;
    void (*check)(Where);
};
const std::vector<GraphCase>& graph_cases();

}  // namespace mezzo::test
