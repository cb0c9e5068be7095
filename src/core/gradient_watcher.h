// Who takes part in what happens to the gradients of leaves: data parallelism, which reduces them between processes.
// The slot of a watched gradient (core/gradient_slot.h) asks it before the gradient is used.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/ref.h"
#include "mezzo/tensor.h"

namespace mezzo {

class GradientWatcher {
public:
    GradientWatcher() = default;
    virtual ~GradientWatcher() = default;
    GradientWatcher(const GradientWatcher&) = delete;
    GradientWatcher& operator=(const GradientWatcher&) = delete;

    // `place` is the number under which the leaf is watched (GradientSlot::watch).
    // Somebody looks at the gradient, or replaces it: a reduction that is under way has to end before.
    virtual void settle(std::uint32_t place) = 0;
    // An update is coming: what has not been reduced yet is reduced before.
    virtual void complete(std::uint32_t place) = 0;
    // Something is about to be added to the gradient, or becomes the gradient.
    virtual void adding(std::uint32_t place) = 0;
    // Memory for a new gradient, of the leaf's shape and dtype, with any values; undefined if there is none.
    virtual Tensor home(std::uint32_t place) = 0;
    // Whether the gradient lies in memory from home(), to which the watcher holds one more reference.
    virtual bool at_home(std::uint32_t place, const Tensor& gradient) const = 0;

    std::atomic<std::uint32_t> refs{0};
};
inline void dispose(GradientWatcher* watcher) noexcept { delete watcher; }

}  // namespace mezzo
