// Deferred unscaling and clipping (core/pending_factor.h): unscale_ and clip_grad_norm_ leave the
// multiplication of the gradients to the update, which reads them anyway. A gradient that is read earlier is
// multiplied then.
#pragma once

#include "core/pending_factor.h"
#include "core/tensor_impl.h"
#include "kernels/step.h"

namespace mezzo::optim {

struct GradientList;

// The pending factor of one list of gradients.
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
