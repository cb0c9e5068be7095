#include "capture/step_memory.h"

#include <algorithm>

#include "core/sorting.h"

namespace mezzo {
namespace {

bool meet(const Lifetime& a, const Lifetime& b) { return a.birth < b.death && b.birth < a.death; }

std::size_t most_alive(const std::vector<Lifetime>& lifetimes) {
    // Allocations come in order of birth; before each, those that have died are subtracted.
    const std::vector<std::size_t> by_death = sorted_indices(
        lifetimes.size(), [&](auto a, auto b) { return lifetimes[a].death < lifetimes[b].death; });
    std::size_t alive = 0, most = 0, dead = 0;
    for (const Lifetime& born : lifetimes) {
        for (; lifetimes[by_death[dead]].death < born.birth; ++dead) alive -= lifetimes[by_death[dead]].bytes;
        alive += born.bytes;
        most = std::max(most, alive);
    }
    return most;
}

}  // namespace

MemoryPlan plan_memory(const std::vector<Lifetime>& lifetimes) {
    MemoryPlan plan;
    plan.offsets.resize(lifetimes.size());
    plan.live_peak = most_alive(lifetimes);
    for (const Lifetime& life : lifetimes) plan.sizes.push_back(life.bytes);
    std::vector<std::size_t> placed;  // by offset
    const std::vector<std::size_t> order = sorted_indices(
        lifetimes.size(), [&](auto a, auto b) { return lifetimes[a].bytes > lifetimes[b].bytes; });
    for (const std::size_t i : order) {
        std::size_t offset = 0;
        for (const std::size_t other : placed) {
            if (!meet(lifetimes[i], lifetimes[other])) continue;
            if (offset + lifetimes[i].bytes <= plan.offsets[other]) break;
            offset = std::max(offset, plan.offsets[other] + lifetimes[other].bytes);
        }
        plan.offsets[i] = offset;
        plan.bytes = std::max(plan.bytes, offset + lifetimes[i].bytes);
        const auto at = std::upper_bound(placed.begin(), placed.end(), i,
                                         [&](auto a, auto b) { return plan.offsets[a] < plan.offsets[b]; });
        placed.insert(at, i);
    }
    return plan;
}

Block* MemoryTrace::allocate(std::size_t bytes) {
    const auto number = static_cast<std::uint32_t>(live_.size());
    lifetimes_.push_back({.bytes = block_size(bytes), .birth = clock_++});
    live_.push_back(nullptr);
    Block* block = allocator(device_).allocate(bytes);
    block->number = number;
    live_[number] = block;
    return block;
}

bool MemoryTrace::keeps(Block* block) noexcept {
    // A block from before this trace may still have the number that an earlier trace gave it.
    if (block->number >= live_.size() || live_[block->number] != block) return false;
    live_[block->number] = nullptr;
    lifetimes_[block->number].death = clock_++;
    return false;
}

HeldBlocks::~HeldBlocks() {
    while (first_ != nullptr) dispose(std::exchange(first_, first_->next_cached));
}

void HeldBlocks::add(Block* block) noexcept {
    block->next_cached = first_;
    first_ = block;
}

Block* ArenaMemory::allocate(std::size_t bytes) {
    constexpr const char* hint =
        "; the step must make and release the same tensors in every call, and what it makes only once must "
        "be made "
        "in the warm-up (raise CaptureOptions::warmup)";
    const std::size_t size = block_size(bytes);
    check(next_ < plan_.sizes.size(), ErrorKind::state, "captured step: allocation ", next_, ", of ", size,
          " bytes, is one more than in the last warm-up run", hint);
    check(plan_.sizes[next_] == size, ErrorKind::state, "captured step: allocation ", next_, " is of ", size,
          " bytes, in the last warm-up run it was of ", plan_.sizes[next_], hint);
    const std::size_t begin = plan_.offsets[next_], end = begin + size;
    for (const std::uint32_t other : live_)
        check(plan_.offsets[other] >= end || plan_.offsets[other] + plan_.sizes[other] <= begin,
              ErrorKind::state, "captured step: allocation ", other, " is still alive at allocation ", next_,
              ", in the last warm-up run it was not", hint);
    live_.reserve(live_.size() + 1);
    auto* block = new Block;
    block->arena = arena_;
    block->address = static_cast<char*>(arena_->data) + begin;
    block->size = size;
    block->number = next_;
    live_.push_back(next_++);
    return block;
}

bool ArenaMemory::keeps(Block* block) noexcept {
    // A step that allocates nothing has no arena: then every block is from outside. Parts of a block follow
    // it: it comes here itself when the last of them has gone. Borrowed memory is a part of no block.
    if (arena_ && block->part && block->arena && static_cast<Block&>(*block->arena).arena == arena_)
        return false;
    if (!arena_ || !(block->arena == arena_)) {
        held_.add(block);
        return true;
    }
    std::erase(live_, block->number);
    return false;
}

}  // namespace mezzo
