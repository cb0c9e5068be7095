// Autocast state of a thread as a value. Nodes of user-defined functions and checkpoints store it, and
// restore it around their backward.
#pragma once

#include "autograd/op.h"
#include "core/internal.h"

namespace mezzo {

struct AutocastState {
    bool enabled[device_type_count] = {};
    Dtype dtype[device_type_count] = {float16, float16, float16};
    bool cache = true;
};

MEZZO_INTERNAL AutocastState& autocast_state();  // of this thread
inline bool autocast_open() {
    const AutocastState& s = autocast_state();
    bool any = false;
    for (const bool enabled : s.enabled) any = any || enabled;
    return any;
}

// Sets this thread's state, and puts the previous one back at the end.
class [[nodiscard]] AutocastGuard {
public:
    [[nodiscard]] explicit AutocastGuard(const AutocastState& state) : previous_(autocast_state()) {
        autocast_state() = state;
    }
    ~AutocastGuard() { autocast_state() = previous_; }
    AutocastGuard(const AutocastGuard&) = delete;
    AutocastGuard& operator=(const AutocastGuard&) = delete;

private:
    AutocastState previous_;
};
// Turns autocast off on every device.
class [[nodiscard]] NoAutocast : AutocastGuard {
public:
    [[nodiscard]] NoAutocast() : AutocastGuard(AutocastState{}) {}
};

// Whether this thread's checkpoint is running its segment for the second time. Side effects of the first run,
// such as updates of running statistics, are then skipped.
MEZZO_INTERNAL bool& recomputing();

// Count the open scopes of this thread. When the outermost one closes, the cast cache is cleared.
void enter_autocast_scope();
void leave_autocast_scope() noexcept;

// x in another dtype, without history: the parameter's 16-bit copy, the scope's cached value, or a new
// conversion.
Tensor cached_cast(const Tensor& x, Dtype dtype);

// Number and bytes of the conversions that autocast made for an op. Hits of a 16-bit copy or the cache do not
// count.
struct CastWork {
    std::uint64_t tensors = 0, bytes = 0;
};
// Applies the op's policy to the inputs of an op. Converted values have no history. fp32_out sets
// `requested`, unless it is set already. Throws Error(dtype) for inputs that the policy `banned` or `promote`
// refuses.
CastWork autocast_inputs(const OpTraits& traits, Tensors& values, std::optional<Dtype>& requested);

// Casts made by autocast on this thread, and entries in its cache: for tests and the report.
struct AutocastCounters {
    std::uint64_t casts = 0, cast_bytes = 0, cache_hits = 0, copy16_hits = 0;
    std::int64_t cache_entries = 0;
};
AutocastCounters autocast_counters();

}  // namespace mezzo
