// Deferred unscaling of gradients. A factor that only the device knows, such as 1 / scale, stays pending
// until the gradient is read. The optimizer's update multiplies while it reads; for any other reader the
// gradient's slot applies the factor first.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "core/ref.h"
#include "mezzo/tensor.h"

namespace mezzo {

struct TensorImpl;
class GradientSlot;

// One pending factor and its gradients. Their slots hold a reference to it; it has plain pointers to the
// slots.
class PendingFactor {
public:
    PendingFactor() = default;
    virtual ~PendingFactor() = default;
    PendingFactor(const PendingFactor&) = delete;
    PendingFactor& operator=(const PendingFactor&) = delete;

    // Makes the factor pending for the gradients of these leaves. If anything but its slot refers to one of
    // them, all are multiplied at once.
    void attach(const std::vector<TensorImpl*>& leaves);
    // The factor is no longer pending for the slot's gradient, which has been multiplied, dropped, replaced
    // or overwritten.
    void detach(GradientSlot& slot) noexcept;
    // Multiplies all gradients for which it is still pending.
    void apply();

    std::atomic<std::uint32_t> refs{0};

protected:
    // Multiplies gradients[i], of leaves[i], or replaces it by the product.
    virtual void multiply(const std::vector<TensorImpl*>& leaves, Tensors& gradients) = 0;

private:
    std::vector<GradientSlot*> slots_;  // null: no longer pending
};
inline void dispose(PendingFactor* scale) noexcept { delete scale; }

// Collects the factors that become pending on this thread while it is open. apply() multiplies the gradients
// for which they are still pending. A captured step ends with it, so that no replay depends on a factor of an
// earlier one.
class [[nodiscard]] PendingFactorScope {
public:
    PendingFactorScope() : outer_(current) { current = this; }
    ~PendingFactorScope() { current = outer_; }
    PendingFactorScope(const PendingFactorScope&) = delete;
    PendingFactorScope& operator=(const PendingFactorScope&) = delete;

    void apply();

private:
    friend class PendingFactor;
    static constinit inline thread_local PendingFactorScope* current = nullptr;
    PendingFactorScope* outer_;
    std::vector<Ref<PendingFactor>> scales_;
};

}  // namespace mezzo
