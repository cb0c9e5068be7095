// Hook on a thread's allocations: captured steps, self-checks and reports of memory serve or follow them.
#pragma once

#include <cstddef>

#include "core/allocator.h"
#include "core/internal.h"

namespace mezzo {

// Serves this thread's allocations on one device instead of the allocator, as long as it exists.
class MemoryHook {
public:
    explicit MemoryHook(Device device) : device_(device), previous_(current) { current = this; }
    virtual ~MemoryHook() { current = previous_; }
    MemoryHook(const MemoryHook&) = delete;
    MemoryHook& operator=(const MemoryHook&) = delete;

    // This thread's hook for a device, or null.
    static MemoryHook* of(Device device) {
        return current != nullptr && current->device_ == device ? current : nullptr;
    }

    // A live block of at least `bytes` > 0.
    virtual Block* allocate(std::size_t bytes) = 0;
    // Called when the last reference to a block is gone. True: the hook holds the block from now on.
    virtual bool keeps(Block* block) noexcept = 0;

protected:
    const Device device_;

private:
    friend class OutsideStep;

    MEZZO_INTERNAL static constinit inline thread_local MemoryHook* current = nullptr;
    MemoryHook* previous_;
};

// While it exists, this thread allocates as outside of any step, for objects that are made once and outlive
// the step.
class OutsideStep {
public:
    OutsideStep() : hook_(MemoryHook::current) { MemoryHook::current = nullptr; }
    ~OutsideStep() { MemoryHook::current = hook_; }
    OutsideStep(const OutsideStep&) = delete;
    OutsideStep& operator=(const OutsideStep&) = delete;

private:
    MemoryHook* const hook_;
};

}  // namespace mezzo
