// unscale_ and clip_grad_norm_ leave the multiplication of the gradients to the update, which reads them
// anyway. Whoever looks at a gradient before gets it multiplied (core/lazy_scale.h).
#pragma once

#include "core/lazy_scale.h"
#include "core/tensor_impl.h"
#include "kernels/step.h"

namespace mezzo::optim {

struct GradientList;

// The factor that one list of gradients waits for.
class LazyGradientScale final : public LazyScale {
public:
    // state: the StepState that statistics over the list's gradients have been left in. norm: the gradients'
    // norm, or undefined if it was not asked for. widen: 16-bit gradients of 16-bit parameters become float32
    // first.
    LazyGradientScale(const GradientList& list, const Tensor& state, const Tensor& norm, bool widen);

    GradientScale scale() const;
    // Whether clipping is but one more number: the norm of exactly these gradients is known, and not used
    // yet.
    bool can_clip(const GradientList& list) const;
    // Returns the norm.
    Tensor clip(double max_norm);

private:
    void multiply(const std::vector<TensorImpl*>& leaves, Tensors& gradients) override;

    Tensor state_, norm_;
    std::size_t measured_;  // gradients
    bool widen_, clips_ = false;
    double max_norm_ = 0;
};

// What all gradients of the parameters wait for, if it is one factor for all of them; null otherwise.
Ref<LazyGradientScale> common_lazy_scale(const Tensors& parameters);

}  // namespace mezzo::optim
