// Hook on the gradients of leaves: data parallelism reduces them between processes, deferred unscaling
// multiplies them by a factor that is pending. The gradient's slot (core/gradient/gradient_slot.h) calls its
// hooks before anybody uses the gradient.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/memory/ref.h"
#include "core/thread_state.h"
#include "mezzo/tensor.h"

namespace mezzo {

// Whether processes that reduce gradients also reduce LeafState next to the leaves.
enum class ReducedStates : std::uint8_t {
    none,
    same,    // next to the same leaves
    differ,  // some lack the state that others have
};

class GradientHook {
public:
    GradientHook() = default;
    virtual ~GradientHook() = default;
    GradientHook(const GradientHook&) = delete;
    GradientHook& operator=(const GradientHook&) = delete;

    // `index` is the leaf's index that was passed to GradientSlot::link().
    //
    // Called before the gradient is read or replaced: waits for a reduction that is under way.
    virtual void settle(std::uint32_t /*index*/) {}
    // Called before the gradient is read, after all hooks have settled: applies what is pending. Not called
    // for an update that does so itself (GradientSlot::read_for_update).
    virtual void apply(std::uint32_t /*index*/) {}
    // The same for all gradients for which something is pending.
    virtual void apply_all() {}
    // Whether apply() would change the gradient.
    virtual bool pending(std::uint32_t /*index*/) const { return false; }
    // The gradient is being replaced or overwritten, or the leaf destroyed: nothing is pending for it.
    virtual void forget(std::uint32_t /*index*/) noexcept {}
    // Called before an update: reduces gradients that have not been reduced yet, and waits for this one.
    virtual void complete(std::uint32_t /*index*/) {}
    // Called before something is added to the gradient, or becomes the gradient.
    virtual void adding(std::uint32_t /*index*/) {}
    // Whether the hook reduces gradients between processes.
    virtual bool reduces() const { return false; }
    // The answer of the gradient's last reduction, the same on all those processes.
    virtual ReducedStates reduced_states(std::uint32_t /*index*/) { return ReducedStates::none; }
    // Replaces x by the largest values over those processes, element by element. Collective.
    virtual void reduce_max(const Tensor& /*x*/) {}
    // Memory for a new gradient (a view of a bucket), of the leaf's shape and dtype, with any values;
    // undefined if there is none.
    virtual Tensor bucket_view(std::uint32_t /*index*/) { return {}; }
    // Whether the gradient lies in memory from bucket_view(), to which the hook holds one more reference.
    virtual bool is_bucket_view(std::uint32_t /*index*/, const Tensor& /*gradient*/) const { return false; }

    std::atomic<std::uint32_t> refs{0};
};
inline void dispose(GradientHook* hook) noexcept { delete hook; }

// Collects the hooks with something pending that are linked on this thread while it is open. A captured step
// ends with apply(), so that no replay depends on a factor of an earlier one.
class [[nodiscard]] PendingHooks {
public:
    PendingHooks() : outer_(std::exchange(thread_state.pending_hooks, this)) {}
    ~PendingHooks() { thread_state.pending_hooks = outer_; }
    PendingHooks(const PendingHooks&) = delete;
    PendingHooks& operator=(const PendingHooks&) = delete;

    void add(GradientHook& hook) { hooks_.emplace_back(&hook); }
    void apply() {
        for (const Ref<GradientHook>& hook : std::exchange(hooks_, {})) hook->apply_all();
    }

private:
    PendingHooks* const outer_;
    std::vector<Ref<GradientHook>> hooks_;
};

}  // namespace mezzo
