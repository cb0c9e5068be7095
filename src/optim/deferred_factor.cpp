#include "optim/deferred_factor.h"

#include <algorithm>

#include "mezzo/autograd.h"
#include "mezzo/ops.h"
#include "optim/update.h"

namespace mezzo::optim {

namespace {

bool has_gradient(const Tensor& parameter) {
    return parameter->grad_meta != nullptr && parameter->grad_meta->gradient.defined() &&
           parameter.numel() != 0;
}

}  // namespace

DeferredFactor::DeferredFactor(const GradientList& list, const Tensor& state, const Tensor& norm, bool widen)
    : state_(state), norm_(norm), measured_(list.leaves.size()), widen_(widen) {}

GradientFactor DeferredFactor::scale() const {
    return {.state = static_cast<const StepState*>(raw(state_)), .clip = clips_, .max_norm = max_norm_};
}

bool DeferredFactor::can_clip(const GradientList& list) const {
    if (!norm_.defined() || clips_ || measured_ != list.leaves.size()) return false;
    std::vector<TensorImpl*> leaves = list.leaves;  // a leaf that is listed twice counts twice in a norm
    std::sort(leaves.begin(), leaves.end());
    return std::adjacent_find(leaves.begin(), leaves.end()) == leaves.end();
}

Tensor DeferredFactor::clip(double max_norm) {
    clips_ = true;
    max_norm_ = max_norm;
    return norm_;
}

void DeferredFactor::multiply(const std::vector<TensorImpl*>& leaves, Tensors& gradients) {
    NoGrad plain;
    std::vector<ParamRef> params;
    for (std::size_t i = 0; i < leaves.size(); ++i) {
        Tensor& gradient = gradients[i];
        if (widen_ && is_16bit(leaves[i]->dtype) && is_16bit(gradient.dtype()))
            gradient = gradient.detach().to(float32);
        ParamRef ref{};
        ref.grad = raw(gradient);
        ref.numel = gradient.numel();
        ref.grad_dtype = gradient.dtype();
        params.push_back(ref);
    }
    kernels_of(state_.device()).scale_gradients(params, scale());
}

Ref<DeferredFactor> common_pending_factor(const Tensors& parameters) {
    PendingFactor* common = nullptr;
    for (const Tensor& parameter : parameters) {
        if (!parameter.defined() || !has_gradient(parameter)) continue;
        PendingFactor* const own = parameter->grad_meta->gradient.pending_factor();
        if (own == nullptr || (common != nullptr && own != common)) return {};
        common = own;
    }
    return Ref<DeferredFactor>(static_cast<DeferredFactor*>(common));  // the only derived class
}

}  // namespace mezzo::optim
