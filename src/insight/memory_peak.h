// Finds the peak of a device's memory, and the modules whose tensors are allocated at that moment.
#pragma once

#include <unordered_map>
#include <vector>

#include "core/memory/memory_hook.h"

namespace mezzo::insight {

// Purpose of an allocation.
enum class MemoryUse : std::uint8_t { forward, backward, other };
inline constexpr int memory_uses = 3;

// Records the allocations of this thread and releases in it. Blocks come from the allocator as usual. Traces
// end in reverse order.
class MemoryPeakTrace final : public MemoryHook {
public:
    explicit MemoryPeakTrace(Device device);
    Block* allocate(std::size_t bytes) override;
    bool keeps(Block* block) noexcept override;

    // Assigns later allocations to this module.
    void belongs_to(int place, MemoryUse use) { owner_ = place * memory_uses + int(use); }
    // Starts to look for the peak, in the step of this number.
    void in_step(std::int64_t step);
    // Stops looking. Allocations outside of steps count as older than the trace.
    void end_steps() noexcept;

    struct Peak {
        std::int64_t bytes = 0, before = 0, step = 0;
        std::vector<std::int64_t> owned;  // by module index * memory_uses + use
    };
    const Peak& peak() const { return at_peak_ ? now_ : peak_; }

private:
    struct Live {
        std::int64_t bytes;
        std::size_t owner;
    };
    bool forget(const Block* block) noexcept;
    void keep_peak() noexcept;

    std::unordered_map<const Block*, Live> live_;
    Peak now_, peak_;
    bool watching_ = false;  // in a step
    bool at_peak_ = false;   // now_ is the peak and not yet copied to peak_
    int owner_ = 0;
    std::int64_t step_ = 0;
};

}  // namespace mezzo::insight
