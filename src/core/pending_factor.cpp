#include "core/pending_factor.h"

#include <algorithm>

#include "core/tensor_impl.h"

namespace mezzo {

void PendingFactor::attach(const std::vector<TensorImpl*>& leaves) {
    bool shared = false;
    for (TensorImpl* leaf : leaves) {
        GradientSlot& slot = leaf->grads().gradient;
        shared = shared || slot.shared();
        slot.forget_pending_factor();
        slot.pending_factor_ = Ref<PendingFactor>(this);
        slot.pending_index_ = static_cast<std::uint32_t>(slots_.size());
        slots_.push_back(&slot);
    }
    if (shared) {
        apply();
    } else if (PendingFactorScope* const scope = PendingFactorScope::current) {
        scope->scales_.emplace_back(this);
    }
}

void PendingFactor::detach(GradientSlot& slot) noexcept {
    slots_[slot.pending_index_] = nullptr;
    const Ref<PendingFactor> last = std::move(slot.pending_factor_);  // may be the last reference to this
}

void PendingFactor::apply() {
    const Ref<PendingFactor> alive(this);
    for (GradientSlot* slot : slots_)
        if (slot != nullptr) slot->settle();  // a reduction comes before the factor
    std::vector<TensorImpl*> leaves;
    Tensors gradients;
    for (const GradientSlot* slot : slots_) {
        if (slot == nullptr) continue;
        leaves.push_back(&slot->leaf_);
        gradients.push_back(slot->value_);
    }
    if (leaves.empty()) return;
    multiply(leaves, gradients);
    for (std::size_t i = 0; i < leaves.size(); ++i) {
        GradientSlot& slot = leaves[i]->grad_meta->gradient;
        slot.value_ = gradients[i];
        if (gradients[i].numel() > 0) gradients[i]->storage->version.fetch_add(1, std::memory_order_relaxed);
        detach(slot);
    }
}

void PendingFactorScope::apply() {
    for (const Ref<PendingFactor>& scale : scales_) scale->apply();
    scales_.clear();
}

}  // namespace mezzo
