#include "core/branch.h"

#include <utility>

#include "core/step_memory.h"
#include "mezzo/error.h"

namespace mezzo {

Branch::Branch(Device device, bool independent) : device_(device) {
    MemoryHook* const hook = independent ? MemoryHook::of(device) : nullptr;
    if (hook == nullptr || !hook->may_fork()) return;
    backend_ = &backend_of("branch", device);
    if (backend_->fork_branch == nullptr) return;
    backend_->fork_branch(device.index);
    hook_ = hook;
    hook_->fork();
}

Branch::~Branch() {
    try {
        join();
    } catch (...) {  // the device has failed, and the next call throws
    }
}

void Branch::enter() {
    if (hook_ == nullptr) return;
    backend_->enter_branch(device_.index);
    entered_ = true;
}

void Branch::join() {
    if (hook_ == nullptr) return;
    std::exchange(hook_, nullptr)->join();
    if (entered_) backend_->join_branch(device_.index);
}

}  // namespace mezzo
