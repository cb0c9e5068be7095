// Lazy gradient scaling: a gradient that is to be multiplied by a factor which only the device knows waits
// for it until the gradient is read. The optimizer's update multiplies while it reads; for any other reader
// the gradient's slot applies the factor first.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "core/ref.h"
#include "mezzo/tensor.h"

namespace mezzo {

struct TensorImpl;
class GradientSlot;

// One factor and the gradients that wait for it. Their slots hold a reference to it; it has plain pointers to
// the slots.
class LazyScale {
public:
    LazyScale() = default;
    virtual ~LazyScale() = default;
    LazyScale(const LazyScale&) = delete;
    LazyScale& operator=(const LazyScale&) = delete;

    // Makes the gradients of these leaves wait. If anything but its slot refers to one of them, all are
    // multiplied at once.
    void attach(const std::vector<TensorImpl*>& leaves);
    // The slot's gradient waits no longer: it has been multiplied, dropped, replaced or overwritten.
    void detach(GradientSlot& slot) noexcept;
    // Multiplies all gradients that still wait.
    void apply();

    std::atomic<std::uint32_t> refs{0};

protected:
    // Multiplies gradients[i], of leaves[i], in place, or replaces it by the product.
    virtual void multiply(const std::vector<TensorImpl*>& leaves, Tensors& gradients) = 0;

private:
    std::vector<GradientSlot*> slots_;  // null: waits no longer
};
inline void dispose(LazyScale* scale) noexcept { delete scale; }

// apply() multiplies the gradients that began to wait on this thread while the scope was open, and still
// wait. A captured step ends with it, so that no replay depends on a factor of an earlier one.
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
