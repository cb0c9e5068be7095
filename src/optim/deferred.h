// unscale_ and clip_grad_norm_ leave the multiplication of the gradients to the update, which reads them
// anyway. Whoever looks at a gradient before gets it multiplied (core/pending.h).
#pragma once

#include "core/pending.h"
#include "core/tensor_impl.h"
#include "kernels/step.h"

namespace mezzo::optim {

struct GradientList;

// The factor that one list of gradients waits for.
class Deferred final : public PendingScale {
public:
    // state: the StepState that statistics over the gradients have been left in. norm: the gradients' norm,
    // or undefined if it was not asked for. widen: 16-bit gradients of 16-bit parameters become float32
    // first.
    Deferred(const Tensor& state, const Tensor& norm, bool widen)
        : state_(state), norm_(norm), widen_(widen) {}
    void settle() override;

    GradientScale scale() const;
    // Whether clipping is but one more number: the norm of exactly these gradients is known, and not used
    // yet.
    bool can_clip(const GradientList& list) const;
    // Returns the norm.
    Tensor clip(double max_norm);

private:
    friend void defer(const Ref<Deferred>& deferred, const GradientList& list);
    Tensor state_, norm_;
    std::size_t measured_ = 0;  // gradients
    bool widen_, clips_ = false;
    double max_norm_ = 0;
};

// Has the gradients of the list wait; at once if somebody else may look at one of them.
void defer(const Ref<Deferred>& deferred, const GradientList& list);
// What all gradients of the parameters wait for, if it is one thing for all of them.
Ref<Deferred> common_deferred(const Tensors& parameters);
void settle(const Tensors& parameters);

}  // namespace mezzo::optim
