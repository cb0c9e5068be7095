// The autocast state of a thread, as a value: captured by nodes, restored around recomputation and
// user-defined backwards.
#pragma once

#include "autograd/row.h"

namespace mezzo {

struct AutocastState {
    bool enabled[device_type_count] = {};
    Dtype dtype[device_type_count] = {float16, float16, float16};
    bool cache = true;
};

AutocastState& autocast_state();  // of this thread
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
// Autocast off on every device.
class [[nodiscard]] NoAutocast : AutocastGuard {
public:
    [[nodiscard]] NoAutocast() : AutocastGuard(AutocastState{}) {}
};

// Depth of open scopes; the scope cast cache lives until the outermost one closes.
void enter_autocast_scope();
void leave_autocast_scope() noexcept;

// The value of x in a 16-bit dtype, from the parameter's 16-bit copy, the scope's cache, or a cast. No history.
Tensor cached_cast(const Tensor& x, Dtype dtype);

// What autocast had to convert for an op: not what a 16-bit copy or the cache had.
struct CastWork {
    std::uint64_t tensors = 0, bytes = 0;
};
// Applies a policy to the inputs of an op (fp32_out: to the dtype asked for, unless one is); history is the
// caller's business. Throws for Cast::banned.
CastWork autocast_inputs(const Row& row, Tensors& values, std::optional<Dtype>& asked);

// Casts made by autocast on this thread, and entries in its cache: for tests and the report.
struct AutocastCounters {
    std::uint64_t casts = 0, cast_bytes = 0, cache_hits = 0, copy16_hits = 0;
    std::int64_t cache_entries = 0;
};
AutocastCounters autocast_counters();

}  // namespace mezzo
