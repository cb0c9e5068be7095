// Which module's tensors live when most memory of a device is in use.
#pragma once

#include <unordered_map>
#include <vector>

#include "core/step_memory.h"

namespace mezzo::insight {

// What an allocation is made for.
enum class MemoryUse : std::uint8_t { forward, backward, other };
inline constexpr int memory_uses = 3;

// Notes who allocates in this thread and what is released in it. Blocks come from the allocator as usual. Traces end in
// reverse order.
class MemoryPeakTrace final : public MemoryHook {
public:
    explicit MemoryPeakTrace(Device device);
    Block* allocate(std::size_t bytes) override;
    bool keeps(Block* block) noexcept override;

    // What is allocated from now on belongs to this module.
    void belongs_to(int place, MemoryUse use) { owner_ = place * memory_uses + int(use); }
    // From now on it looks for the peak, in the step of this number.
    void in_step(std::int64_t step);
    // It has found it. What is allocated outside of steps counts as older than the trace.
    void end_steps() noexcept;

    struct Peak {
        std::int64_t bytes = 0, before = 0, step = 0;
        std::vector<std::int64_t> owned;  // by place * memory_uses + use
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
    bool watching_ = false;  // whether it is in a step
    bool at_peak_ = false;   // whether now_ is the peak, which peak_ does not hold yet
    int owner_ = 0;
    std::int64_t step_ = 0;
};

}  // namespace mezzo::insight
