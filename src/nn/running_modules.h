// The stack of modules that are running on this thread, recorded on request.
#pragma once

#include <vector>

#include "core/internal.h"
#include "mezzo/module_scope.h"

namespace mezzo::nn {

// While an object exists, in any thread, all threads record their running modules.
class MEZZO_INTERNAL ModuleScopesWanted {
public:
    ModuleScopesWanted() noexcept;
    ~ModuleScopesWanted();
    ModuleScopesWanted(const ModuleScopesWanted&) = delete;
    ModuleScopesWanted& operator=(const ModuleScopesWanted&) = delete;
};

// The running modules of this thread, from the outermost to the innermost.
const std::vector<const Module*>& running_modules();

}  // namespace mezzo::nn
