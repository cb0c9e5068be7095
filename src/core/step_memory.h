// The memory of a captured step: an eager run is traced, its tensors get places in one arena by their
// lifetimes, and the capture allocates there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/allocator.h"

namespace mezzo {

// One allocation of a step. Time counts allocations and releases.
struct Lifetime {
    std::size_t bytes = 0;  // as the allocator rounds it
    std::uint32_t birth = 0;
    std::uint32_t death = ~std::uint32_t(0);  // unchanged if it outlives the step
};

// Where each allocation of a step lies in its arena.
struct MemoryPlan {
    std::vector<std::size_t> sizes, offsets;  // in order of allocation
    std::size_t bytes = 0;                    // of the arena
    std::size_t live_peak = 0;                // most bytes alive at once: no plan can need less
};
// Places the largest allocation first, and each at the lowest offset that is free during its whole lifetime.
MemoryPlan plan_memory(const std::vector<Lifetime>& lifetimes);

// While it exists, it serves this thread's allocations on one device in place of the allocator.
class MemoryHook {
public:
    // `branches`: whether the thread's work may fork into parallel branches (core/branch.h).
    explicit MemoryHook(Device device, bool branches = false)
        : device_(device), branches_(branches), previous_(current) {
        current = this;
    }
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

    // Between fork() and join() two branches run side by side: a block that one of them releases may still be
    // in use by the other one, so its memory is not reused before join().
    bool may_fork() const { return branches_ && !forked_; }
    void fork() noexcept {
        forked_ = true;
        ++forks_;
    }
    void join() noexcept {
        forked_ = false;
        joined();
    }
    std::size_t forks() const { return forks_; }

protected:
    virtual void joined() noexcept = 0;
    bool forked() const { return forked_; }
    const Device device_;

private:
    friend class OutsideStep;

    const bool branches_;
    bool forked_ = false;
    std::size_t forks_ = 0;
    static constinit inline thread_local MemoryHook* current = nullptr;
    MemoryHook* previous_;
};

// While it exists, this thread allocates as outside of any step: what outlives the step and is made only once.
class OutsideStep {
public:
    OutsideStep() : hook_(MemoryHook::current) { MemoryHook::current = nullptr; }
    ~OutsideStep() { MemoryHook::current = hook_; }
    OutsideStep(const OutsideStep&) = delete;
    OutsideStep& operator=(const OutsideStep&) = delete;

private:
    MemoryHook* const hook_;
};

// Blocks without references whose memory is still needed: by a graph that may read it, or until two branches
// have joined.
class HeldBlocks {
public:
    HeldBlocks() = default;
    ~HeldBlocks() { release(); }
    HeldBlocks(const HeldBlocks&) = delete;
    HeldBlocks& operator=(const HeldBlocks&) = delete;
    void add(Block* block) noexcept;
    void release() noexcept;

private:
    Block* first_ = nullptr;
};

// Notes the lifetimes of blocks, which come from the allocator as usual. The lifetime of a block that is
// released between fork() and join() is extended to the join.
class MemoryTrace final : public MemoryHook {
public:
    using MemoryHook::MemoryHook;
    Block* allocate(std::size_t bytes) override;
    bool keeps(Block* block) noexcept override;
    const std::vector<Lifetime>& lifetimes() const { return lifetimes_; }

private:
    void joined() noexcept override { until_join_.release(); }

    std::vector<Lifetime> lifetimes_;
    std::vector<Block*> live_;  // by number; null once released
    HeldBlocks until_join_;
    std::uint32_t clock_ = 0;
};

// Serves allocations with the places of a plan, in the plan's order. Throws Error(state) if a place is not
// free yet or a size differs from the plan's. Blocks from elsewhere that are released meanwhile go to `held`,
// because the graph may read them.
class ArenaMemory final : public MemoryHook {
public:
    ArenaMemory(Device device, const MemoryPlan& plan, Ref<Storage> arena, HeldBlocks& held,
                bool branches = false)
        : MemoryHook(device, branches), plan_(plan), arena_(std::move(arena)), held_(held) {}
    Block* allocate(std::size_t bytes) override;
    bool keeps(Block* block) noexcept override;

private:
    struct Place {
        std::uint32_t number;
        bool released;  // while forked
    };
    void joined() noexcept override;

    const MemoryPlan& plan_;
    const Ref<Storage> arena_;
    HeldBlocks& held_;
    std::vector<Place> live_;  // places that must not be used again yet
    std::uint32_t next_ = 0;
};

}  // namespace mezzo
