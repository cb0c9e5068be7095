#include "insight/memory_peak.h"

#include <algorithm>

namespace mezzo::insight {

MemoryPeakTrace::MemoryPeakTrace(Device device) : MemoryHook(device) {
    now_.before = now_.bytes = std::int64_t(memory_stats(device).allocated);
}

Block* MemoryPeakTrace::allocate(std::size_t bytes) {
    const auto owner = std::size_t(owner_);
    if (now_.owned.size() <= owner) now_.owned.resize(owner + 1);
    peak_.owned.reserve(now_.owned.capacity());  // so that keep_peak() allocates nothing
    CachingAllocator& source = allocator(device_);
    Block* const block = source.allocate(bytes);
    forget(block);  // if another thread has released it
    now_.bytes += std::int64_t(block->size);
    if (!watching_) {
        now_.before += std::int64_t(block->size);
        return block;
    }
    try {
        live_.emplace(block, Live{std::int64_t(block->size), owner});
    } catch (...) {
        now_.bytes -= std::int64_t(block->size);
        source.release(block);
        throw;
    }
    now_.owned[owner] += std::int64_t(block->size);
    if (now_.bytes > peak_.bytes) {
        at_peak_ = true;
        now_.step = step_;
    }
    return block;
}

void MemoryPeakTrace::in_step(std::int64_t step) {
    step_ = step;
    if (watching_) return;
    watching_ = at_peak_ = true;
    now_.step = step;
}

void MemoryPeakTrace::end_steps() noexcept {
    keep_peak();
    watching_ = false;
}

bool MemoryPeakTrace::keeps(Block* block) noexcept {
    if (!block->part && !forget(block)) {  // it is older than the trace
        keep_peak();
        const std::int64_t size = std::min(std::int64_t(block->size), now_.before);
        now_.before -= size;
        now_.bytes -= size;
    }
    return false;
}

// Returns false if the block is unknown.
bool MemoryPeakTrace::forget(const Block* block) noexcept {
    const auto known = live_.find(block);
    if (known == live_.end()) return false;
    keep_peak();
    now_.bytes -= known->second.bytes;
    now_.owned[known->second.owner] -= known->second.bytes;
    live_.erase(known);
    return true;
}

// Copies the peak when memory is released, not at each allocation that leads to it.
void MemoryPeakTrace::keep_peak() noexcept {
    if (at_peak_) peak_ = now_;
    at_peak_ = false;
}

}  // namespace mezzo::insight
