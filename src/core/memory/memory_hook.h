// Hook on a thread's allocations: captured steps, self-checks and reports of memory serve or follow them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/internal.h"
#include "core/memory/allocator.h"
#include "core/scoped_value.h"
#include "core/thread_state.h"

namespace mezzo {

// Serves this thread's allocations on one device instead of the allocator, as long as it exists.
class MemoryHook {
public:
    explicit MemoryHook(Device device)
        : device_(device),
          number_(last.fetch_add(1, std::memory_order_relaxed) + 1),
          previous_(thread_state.memory_hook) {
        thread_state.memory_hook = this;
    }
    virtual ~MemoryHook() { thread_state.memory_hook = previous_; }
    MemoryHook(const MemoryHook&) = delete;
    MemoryHook& operator=(const MemoryHook&) = delete;

    // This thread's hook for a device, or null.
    static MemoryHook* of(Device device) {
        MemoryHook* const hook = thread_state.memory_hook;
        return hook != nullptr && hook->device_ == device ? hook : nullptr;
    }
    // Number of this thread's hook for a device, unique in the process; 0 if there is none. A captured step
    // must not read what was made once outside of it: a replay would not make it again.
    static std::uint64_t number_of(Device device) {
        const MemoryHook* const hook = of(device);
        return hook != nullptr ? hook->number_ : 0;
    }

    // A live block of at least `bytes` > 0.
    virtual Block* allocate(std::size_t bytes) = 0;
    // Called when the last reference to a block is gone. True: the hook holds the block from now on.
    virtual bool keeps(Block* block) noexcept = 0;

protected:
    const Device device_;

private:
    MEZZO_INTERNAL static inline constinit std::atomic<std::uint64_t> last{0};  // number of a hook
    const std::uint64_t number_;
    MemoryHook* const previous_;
};

// While it exists, this thread allocates as outside of any step, for objects that are made once and outlive
// the step.
struct OutsideStep : ScopedValue<MemoryHook*> {
    OutsideStep() : ScopedValue(thread_state.memory_hook, nullptr) {}
};

}  // namespace mezzo
