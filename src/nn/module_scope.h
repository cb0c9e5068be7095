// The modules that are running on this thread, kept while somebody wants to know.
#pragma once

#include <vector>

#include "mezzo/module_scope.h"

namespace mezzo::nn {

// While one exists, in any thread, all threads keep their running modules.
class ModuleScopesWanted {
public:
    ModuleScopesWanted() noexcept;
    ~ModuleScopesWanted();
    ModuleScopesWanted(const ModuleScopesWanted&) = delete;
    ModuleScopesWanted& operator=(const ModuleScopesWanted&) = delete;
};

// From the outermost to the innermost.
const std::vector<const Module*>& running_modules();

}  // namespace mezzo::nn
