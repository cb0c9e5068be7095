#include "optim/deferred.h"

#include <algorithm>

#include "mezzo/autograd.h"
#include "mezzo/ops.h"
#include "optim/param_refs.h"

namespace mezzo::optim {

namespace {

bool held_elsewhere(const TensorImpl* leaf) {
    const Tensor& gradient = leaf->grad_meta->grad;
    return gradient->refs.load() != 1 || gradient->storage->refs.load() != 1;
}

bool has_gradient(const Tensor& parameter) {
    const GradMeta* const meta = parameter->grad_meta;
    return meta != nullptr && meta->grad.defined() && meta->grad.numel() != 0;
}

}  // namespace

GradientScale Deferred::scale() const {
    note_use();
    return {.state = static_cast<const StepState*>(raw(state_)), .clip = clips_, .max_norm = max_norm_};
}

bool Deferred::can_clip(const GradientList& list) const {
    if (!norm_.defined() || clips_ || measured_ != list.leaves.size()) return false;
    std::vector<TensorImpl*> leaves = list.leaves;  // one that is listed twice counts twice
    std::sort(leaves.begin(), leaves.end());
    return std::adjacent_find(leaves.begin(), leaves.end()) == leaves.end();
}

Tensor Deferred::clip(double max_norm) {
    note_use();
    clips_ = true;
    max_norm_ = max_norm;
    return norm_;
}

void Deferred::settle() {
    NoGrad plain;
    const std::vector<TensorImpl*> leaves = waiting();
    std::vector<ParamRef> gradients;
    for (TensorImpl* leaf : leaves) {
        Tensor& gradient = leaf->grad_meta->grad;
        if (widen_ && is_16bit(leaf->dtype) && is_16bit(gradient.dtype()))
            gradient = gradient.detach().to(float32);
        ParamRef ref{};
        ref.grad = raw(gradient);
        ref.numel = gradient.numel();
        ref.grad_dtype = gradient.dtype();
        gradients.push_back(ref);
    }
    if (gradients.empty()) return;
    kernels_of(state_.device()).scale_gradients(gradients, scale());
    for (TensorImpl* leaf : leaves) {
        bump_version(leaf->grad_meta->grad);
        detach(*leaf);
    }
}

void defer(const Ref<Deferred>& deferred, const GradientList& list) {
    deferred->measured_ = list.leaves.size();
    const bool seen = std::any_of(list.leaves.begin(), list.leaves.end(), held_elsewhere);
    for (TensorImpl* leaf : list.leaves) deferred->attach(*leaf);
    if (seen) deferred->settle();
}

Ref<Deferred> common_deferred(const Tensors& parameters) {
    PendingScale* common = nullptr;
    for (const Tensor& parameter : parameters) {
        if (!parameter.defined() || !has_gradient(parameter)) continue;
        PendingScale* const own = parameter->grad_meta->pending.get();
        if (own == nullptr || (common != nullptr && own != common)) return {};
        common = own;
    }
    return Ref<Deferred>(static_cast<Deferred*>(common));  // the only kind there is
}

void settle(const Tensors& parameters) {
    for (const Tensor& parameter : parameters)
        if (parameter.defined()) settle_gradient(*parameter.impl());
}

}  // namespace mezzo::optim
