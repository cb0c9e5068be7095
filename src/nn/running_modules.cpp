#include "nn/running_modules.h"

#include <atomic>

#include "autograd/op_observer.h"

namespace mezzo::nn {
namespace {

std::atomic<int> wanted{0};

std::vector<const Module*>& running() {
    thread_local std::vector<const Module*> modules;
    return modules;
}

}  // namespace

bool detail::module_scopes_wanted() noexcept { return wanted.load(std::memory_order_relaxed) != 0; }
void detail::enter_module(const Module& module) {
    running().push_back(&module);
    Observers::notify([&](OpObserver& one) { one.module_begins(module); });
}
void detail::leave_module() noexcept {
    Observers::notify([](OpObserver& one) { one.module_ends(); });
    running().pop_back();
}

ModuleScopesWanted::ModuleScopesWanted() noexcept { ++wanted; }
ModuleScopesWanted::~ModuleScopesWanted() { --wanted; }

const std::vector<const Module*>& running_modules() { return running(); }

}  // namespace mezzo::nn
