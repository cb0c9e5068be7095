// Adds the gradients that reach a leaf to its grad(), or to the gradient of a target.
#include <utility>

#include "autograd/engine.h"
#include "autograd/extra.h"
#include "mezzo/ops.h"

namespace mezzo {

Tensor after_hooks(const Tensor& leaf, Tensor gradient) {
    const Hooks* const hooks = leaf_hooks(leaf);
    return hooks != nullptr ? run_hooks(*hooks, 0, std::move(gradient)) : gradient;
}

void Engine::add(Tensor& sum, Tensor gradient) const {
    if (!sum.defined()) {
        sum = std::move(gradient);
    } else if (!create_graph_ && owned_alone(sum)) {
        sum.add_(gradient);
    } else {
        sum = sum + gradient;
    }
}

void Engine::deliver(const Tensor& leaf, Tensor gradient, ScaleState scaled) {
    if (targets_) {
        if (Tensor* const total = targets_->gradient_of(leaf)) {
            add(*total, std::move(gradient));
        } else if (parent_) {
            parent_->deliver(leaf, std::move(gradient), scaled);
        }
        return;
    }
    if (listener_) listener_->delivering(leaf);
    if (!leaf_hooks(leaf)) {
        accumulate(leaf, std::move(gradient), scaled);
        return;
    }
    for (HookedLeaf& hooked : hooked_)
        if (hooked.leaf.impl() == leaf.impl()) {
            hooked.scaled = sum_of_parts(hooked.scaled, scaled);
            add(hooked.sum, std::move(gradient));
            return;
        }
    hooked_.push_back({leaf, std::move(gradient), scaled});
}

// Runs the hooks of leaves on their totals, and accumulates the results.
void Engine::deliver_hooked() {
    for (auto& [leaf, gradient, scaled] : hooked_)
        accumulate(leaf, after_hooks(leaf, std::move(gradient)), scaled);
}

// Adds to leaf.grad(). A first gradient is written to the memory that the leaf's hook has for it (a bucket).
// Without such memory, a gradient without other references becomes grad() itself; any other is copied,
// because later gradients are added to grad() itself.
void Engine::accumulate(const Tensor& leaf, Tensor gradient, ScaleState scaled) const {
    GradientSlot& slot = leaf->grad_meta->gradient;
    slot.add(std::move(gradient), scaled, [this, &slot](Tensor& total, Tensor more) {
        const Tensor view = total.defined() || create_graph_ ? Tensor() : slot.bucket_view();
        if (view.defined()) {
            total = view.copy_(more);
        } else if (!total.defined()) {
            total = owned_alone(more) ? std::move(more) : more.clone();
        } else if (create_graph_) {
            total = total + more;
        } else {
            total.add_(more);
        }
    });
}

}  // namespace mezzo
