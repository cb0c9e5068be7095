// Scratch arena for kernel self-checks, invisible to memory statistics and to the memory plan of a captured
// step.
#pragma once

#include <cstddef>

#include "core/memory/memory_hook.h"

namespace mezzo {

// While it exists, this thread's allocations on one device come from a piece of memory of its own, taken from
// the system and released by the destructor. Nothing that was allocated here may outlive it. Throws
// Error(memory) if the piece is used up, if the system has none, or if a memory limit leaves no room for it.
class SeparateMemory final : public MemoryHook {
public:
    SeparateMemory(Device device, std::size_t bytes);
    ~SeparateMemory() override;
    Block* allocate(std::size_t bytes) override;
    bool keeps(Block*) noexcept override { return false; }

private:
    const Backend& backend_;
    const std::size_t bytes_;
    char* memory_ = nullptr;
    std::size_t used_ = 0;
};

}  // namespace mezzo
