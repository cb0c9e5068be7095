// Memory planning of a captured step. An eager run is traced, its tensors get offsets in one arena by their
// lifetimes, and the capture allocates there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/memory/memory_hook.h"

namespace mezzo {

// One allocation of a step. Time counts allocations and releases.
struct Lifetime {
    std::size_t bytes = 0;  // as the allocator rounds it
    std::uint32_t birth = 0;
    std::uint32_t death = ~std::uint32_t(0);  // unchanged if it outlives the step
};

// Offset of each allocation of a step in its arena.
struct MemoryPlan {
    std::vector<std::size_t> sizes, offsets;  // in order of allocation
    std::size_t bytes = 0;                    // of the arena
    std::size_t live_peak = 0;                // most bytes alive at once: no plan can need less
};
// Puts the largest allocation first, and each at the lowest offset that is free during its whole lifetime.
MemoryPlan plan_memory(const std::vector<Lifetime>& lifetimes);

// Blocks without references that a graph may still read. The destructor releases them.
class HeldBlocks {
public:
    HeldBlocks() = default;
    ~HeldBlocks();
    HeldBlocks(const HeldBlocks&) = delete;
    HeldBlocks& operator=(const HeldBlocks&) = delete;
    void add(Block* block) noexcept;

private:
    Block* first_ = nullptr;
};

// Records the lifetimes of blocks, which come from the allocator as usual.
class MemoryTrace final : public MemoryHook {
public:
    using MemoryHook::MemoryHook;
    Block* allocate(std::size_t bytes) override;
    bool keeps(Block* block) noexcept override;
    const std::vector<Lifetime>& lifetimes() const { return lifetimes_; }

private:
    std::vector<Lifetime> lifetimes_;
    std::vector<Block*> live_;  // by number; null once released
    std::uint32_t clock_ = 0;
};

// Serves allocations at the offsets of a plan, in the plan's order. Throws Error(state) if the memory there
// is not free yet or a size differs from the plan's. Other blocks that are released meanwhile go to `held`,
// because the graph may read them.
class ArenaMemory final : public MemoryHook {
public:
    ArenaMemory(Device device, const MemoryPlan& plan, Ref<Storage> arena, HeldBlocks& held)
        : MemoryHook(device), plan_(plan), arena_(std::move(arena)), held_(held) {}
    Block* allocate(std::size_t bytes) override;
    bool keeps(Block* block) noexcept override;

private:
    const MemoryPlan& plan_;
    const Ref<Storage> arena_;
    HeldBlocks& held_;
    std::vector<std::uint32_t> live_;  // numbers of the allocations that are alive
    std::uint32_t next_ = 0;
};

}  // namespace mezzo
