#include "optim/deferred_factor.h"

#include <algorithm>
#include <utility>

#include "core/thread_state.h"
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

void PendingFactor::attach(const std::vector<TensorImpl*>& leaves) {
    bool shared = false;
    leaves_.reserve(leaves_.size() + leaves.size());
    for (TensorImpl* leaf : leaves) {
        GradientSlot& slot = leaf->grads().gradient;
        shared = shared || slot.shared();
        slot.forget_pending();
        slot.link({Ref<GradientHook>(this), std::uint32_t(leaves_.size())});
        leaves_.push_back(leaf);
    }
    if (shared)
        apply_all();
    else if (thread_state.pending_hooks != nullptr)
        thread_state.pending_hooks->add(*this);
}

void PendingFactor::forget(std::uint32_t index) noexcept {
    if (TensorImpl* const leaf = std::exchange(leaves_[index], nullptr))
        leaf->grad_meta->gradient.unlink(this);
}

void PendingFactor::apply_all() {
    const Ref<PendingFactor> alive(this);
    for (TensorImpl* const leaf : leaves_)
        if (leaf != nullptr) leaf->grad_meta->gradient.settle();  // a reduction comes before the factor
    std::vector<TensorImpl*> leaves;
    Tensors gradients;
    for (TensorImpl* const leaf : leaves_) {
        if (leaf == nullptr) continue;
        leaves.push_back(leaf);
        gradients.push_back(leaf->grad_meta->gradient.unsettled());
    }
    if (leaves.empty()) return;
    multiply(leaves, gradients);
    for (std::size_t i = 0; i < leaves.size(); ++i) {
        GradientSlot& slot = leaves[i]->grad_meta->gradient;
        slot.set_applied(gradients[i]);
        bump_version(gradients[i]);
    }
    for (std::uint32_t i = 0; i < leaves_.size(); ++i) forget(i);
}

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
    Ref<DeferredFactor> common;
    for (const Tensor& parameter : parameters) {
        if (!parameter.defined() || !has_gradient(parameter)) continue;
        const GradientSlot::Link link = parameter->grad_meta->gradient.find<DeferredFactor>();
        const Ref<DeferredFactor> own(static_cast<DeferredFactor*>(link.hook.get()));
        if (!own || (common && !(own == common))) return {};
        common = own;
    }
    return common;
}

}  // namespace mezzo::optim
