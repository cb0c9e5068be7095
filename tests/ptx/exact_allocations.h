// Mode in which each tensor is a device allocation of its exact size, so that an access one element beyond a
// tensor is a fault. Otherwise mezzo's allocator cuts tensors out of larger allocations.
#pragma once

#include "core/memory/memory_hook.h"

namespace mezzo::ptx {

// Serves this thread's allocations as long as it exists, except those under another MemoryHook, such as a
// captured step's. Memory statistics do not count them.
class ExactAllocations final : public MemoryHook {
public:
    ExactAllocations() : MemoryHook(Device(DeviceType::cuda)) {}
    Block* allocate(std::size_t bytes) override;
    bool keeps(Block*) noexcept override { return false; }
};

}  // namespace mezzo::ptx
