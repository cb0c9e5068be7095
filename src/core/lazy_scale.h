// Lazy gradient scaling: gradients that are to be multiplied by a factor which only the device knows wait for
// somebody who reads them. The optimizer's update multiplies in passing; for anybody else the gradient's slot
// applies the factor first.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "core/ref.h"
#include "mezzo/tensor.h"

namespace mezzo {

struct TensorImpl;
class GradientSlot;

// One factor and the gradients that wait for it. Each of their slots holds it, and it knows the slots without
// holding them.
class LazyScale {
public:
    LazyScale() = default;
    virtual ~LazyScale() = default;
    LazyScale(const LazyScale&) = delete;
    LazyScale& operator=(const LazyScale&) = delete;

    // The gradients of these leaves wait from now on. If somebody else holds one of them, all are multiplied
    // at once.
    void attach(const std::vector<TensorImpl*>& leaves);
    // The gradient in the slot is dropped, replaced or overwritten.
    void detach(GradientSlot& slot) noexcept;
    // Multiplies all gradients that still wait.
    void apply();

    std::atomic<std::uint32_t> refs{0};

protected:
    // Multiplies gradients[i], of leaves[i], in place, or puts the product into its place.
    virtual void multiply(const std::vector<TensorImpl*>& leaves, Tensors& gradients) = 0;

private:
    std::vector<GradientSlot*> slots_;  // null: waits no longer
};
inline void dispose(LazyScale* scale) noexcept { delete scale; }

// Gradients that begin to wait on this thread while the scope is open are multiplied at the latest by its
// apply(). A captured step ends so: what a replay leaves behind depends on no factor of an earlier replay.
class [[nodiscard]] LazyScaleScope {
public:
    LazyScaleScope() : outer_(current) { current = this; }
    ~LazyScaleScope() { current = outer_; }
    LazyScaleScope(const LazyScaleScope&) = delete;
    LazyScaleScope& operator=(const LazyScaleScope&) = delete;

    void apply();

private:
    friend class LazyScale;
    static constinit inline thread_local LazyScaleScope* current = nullptr;
    LazyScaleScope* outer_;
    std::vector<Ref<LazyScale>> scales_;
};

}  // namespace mezzo
