// Guards of this thread's autocast state, and the conversions that autocast makes.
#pragma once

#include "autograd/op.h"
#include "core/internal.h"
#include "core/thread_state.h"

namespace mezzo {

// Sets this thread's state, and puts the previous one back at the end.
class [[nodiscard]] AutocastGuard {
public:
    [[nodiscard]] explicit AutocastGuard(const AutocastState& state) : previous_(thread_state.autocast) {
        thread_state.autocast = state;
    }
    ~AutocastGuard() { thread_state.autocast = previous_; }
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

// The float8 products of this thread's scope for a device, or null.
const amp::Fp8* scope_fp8(Device device);
// Why linear() of x and weight stays in 16 bit; null if it is a float8 product.
const char* why_not_fp8(const amp::Fp8& fp8, const Tensor& x, const Tensor& weight);

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
