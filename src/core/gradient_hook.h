// Hook on the gradients of leaves, for data parallelism, which reduces them between processes. The slot of a
// gradient (core/gradient_slot.h) calls it before the gradient is used.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/ref.h"
#include "mezzo/tensor.h"

namespace mezzo {

class GradientHook {
public:
    GradientHook() = default;
    virtual ~GradientHook() = default;
    GradientHook(const GradientHook&) = delete;
    GradientHook& operator=(const GradientHook&) = delete;

    // `index` is the leaf's index that was passed to GradientSlot::set_hook().
    //
    // Called before the gradient is read or replaced: waits for a reduction that is under way.
    virtual void settle(std::uint32_t index) = 0;
    // Called before an update: reduces gradients that have not been reduced yet, and waits for this one.
    virtual void complete(std::uint32_t index) = 0;
    // Called before something is added to the gradient, or becomes the gradient.
    virtual void adding(std::uint32_t index) = 0;
    // Memory for a new gradient (a view of a bucket), of the leaf's shape and dtype, with any values;
    // undefined if there is none.
    virtual Tensor bucket_view(std::uint32_t index) = 0;
    // Whether the gradient lies in memory from bucket_view(), to which the hook holds one more reference.
    virtual bool is_bucket_view(std::uint32_t index, const Tensor& gradient) const = 0;

    std::atomic<std::uint32_t> refs{0};
};
inline void dispose(GradientHook* hook) noexcept { delete hook; }

}  // namespace mezzo
