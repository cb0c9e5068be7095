// Data-parallel training over graphs of all kinds: accumulation, several losses, unused, shared and frozen parameters, checkpointed segments.
#pragma once

#include <vector>

namespace mezzo::test {

// Where the ranks have their models and data, which decides what gradients travel by.
enum class Where { host, devices };

struct GraphCase {
    const char* name;
    void (*check)(Where);
};
const std::vector<GraphCase>& graph_cases();

}  // namespace mezzo::test
