#include "core/pending.h"

#include "core/capture.h"
#include "core/tensor_impl.h"

namespace mezzo {

PendingScale::PendingScale() : graph_(StepGraph::recording() ? StepGraph::recording()->id() : 0) {}

void PendingScale::attach(TensorImpl& leaf) {
    GradMeta& meta = leaf.grads();
    forget_pending(leaf);
    if (StepGraph* const graph = StepGraph::recording()) {
        std::shared_ptr<Replayed> replayed = replayed_.lock();
        if (!replayed) {
            replayed_ = replayed = std::make_shared<Replayed>();
            replayed->pending = Ref<PendingScale>(this);
            graph->after_replay([replayed] {
                if (replayed->pending) replayed->pending->attach_again(*replayed);
            });
        }
        replayed->places.push_back({Tensor(&leaf), raw(meta.grad)});
        ++replayed->waiting;
    }
    leaves_.push_back(&leaf);
    meta.pending = Ref<PendingScale>(this);
    meta.pending_place = static_cast<std::uint32_t>(leaves_.size() - 1);
}

// A replay has written the gradients anew, whatever became of those of the run before.
void PendingScale::attach_again(const Replayed& replayed) {
    for (TensorImpl* leaf : waiting()) detach(*leaf);
    leaves_.clear();
    for (const auto& [leaf, gradient] : replayed.places)
        if (leaf.defined() && leaf->grad_meta->grad.defined() && raw(leaf->grad_meta->grad) == gradient)
            attach(*leaf.impl());
}

void PendingScale::detach(TensorImpl& leaf) noexcept {
    GradMeta& meta = *leaf.grad_meta;
    const std::uint32_t place = meta.pending_place;
    leaves_[place] = nullptr;
    if (StepGraph* graph = StepGraph::recording(); graph != nullptr && graph->id() == graph_)
        forget_in_replays(place);
    meta.pending = nullptr;  // may be the last reference to this
}

void PendingScale::forget_in_replays(std::uint32_t place) noexcept {
    const std::shared_ptr<Replayed> replayed = replayed_.lock();
    if (!replayed || place >= replayed->places.size()) return;
    replayed->places[place].leaf = Tensor();
    if (--replayed->waiting == 0) replayed->pending = nullptr;
}

std::vector<TensorImpl*> PendingScale::waiting() const {
    std::vector<TensorImpl*> result;
    for (TensorImpl* leaf : leaves_)
        if (leaf != nullptr) result.push_back(leaf);
    return result;
}

void PendingScale::note_use() const {
    StepGraph* const graph = StepGraph::recording();
    if (graph != nullptr && graph->id() != graph_) graph->require([] { return false; });
}

void settle_gradient(TensorImpl& leaf) {
    if (leaf.grad_meta == nullptr || !leaf.grad_meta->pending) return;
    const Ref<PendingScale> pending = leaf.grad_meta->pending;  // lives until it has done its work
    pending->settle();
}

void forget_pending(TensorImpl& leaf) noexcept {
    if (leaf.grad_meta != nullptr && leaf.grad_meta->pending) {
        const Ref<PendingScale> pending = leaf.grad_meta->pending;
        pending->detach(leaf);
    }
}

}  // namespace mezzo
