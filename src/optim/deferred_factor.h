// Deferred unscaling and clipping: unscale_ and clip_grad_norm_ leave the multiplication of the gradients by
// a factor that only the device knows, such as 1 / scale, to the update, which reads them anyway. For any
// other reader the gradient's slot applies the factor first.
#pragma once

#include <vector>

#include "core/gradient/gradient_hook.h"
#include "core/gradient/gradient_slot.h"
#include "core/tensor_impl.h"
#include "kernels/step.h"

namespace mezzo::optim {

struct GradientList;

// One pending factor and its gradients. Their slots hold a reference to it; it has plain pointers to the
// slots.
class PendingFactor : public GradientHook {
public:
    // Makes the factor pending for the gradients of these leaves. If anything but its slot refers to one of
    // them, all are multiplied at once.
    void attach(const std::vector<TensorImpl*>& leaves);
    // Multiplies all gradients for which it is still pending.
    void apply_all() override;
    void apply(std::uint32_t) override { apply_all(); }
    bool pending(std::uint32_t) const override { return true; }
    void forget(std::uint32_t index) noexcept override;

protected:
    // Multiplies gradients[i], of leaves[i], or replaces it by the product.
    virtual void multiply(const std::vector<TensorImpl*>& leaves, Tensors& gradients) = 0;

private:
    std::vector<TensorImpl*> leaves_;  // null: no longer pending
};

// The factor of one list of gradients.
class DeferredFactor final : public PendingFactor {
public:
    // state: holds the StepState that `statistics` has computed for the list's gradients. norm: their norm,
    // or undefined if it was not requested. widen: 16-bit gradients of 16-bit parameters become float32
    // first.
    DeferredFactor(const GradientList& list, const Tensor& state, const Tensor& norm, bool widen);

    GradientFactor scale() const;
    // Whether clip() may be called, so that clipping launches nothing: the norm of exactly these gradients is
    // known, and they have not been clipped yet.
    bool can_clip(const GradientList& list) const;
    // Adds clipping to the factor. Returns the norm.
    Tensor clip(double max_norm);

private:
    void multiply(const std::vector<TensorImpl*>& leaves, Tensors& gradients) override;

    Tensor state_, norm_;
    std::size_t measured_;  // the number of gradients in the norm
    bool widen_, clips_ = false;
    double max_norm_ = 0;
};

// The factor that is pending for all gradients of the parameters; null unless they have the same one.
Ref<DeferredFactor> common_pending_factor(const Tensors& parameters);

}  // namespace mezzo::optim
