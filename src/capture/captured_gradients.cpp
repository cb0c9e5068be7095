#include "capture/captured_gradients.h"

#include <algorithm>
#include <utility>

#include "capture/step_graph.h"
#include "core/tensor_impl.h"

namespace mezzo {

namespace {

GradientSlot& slot_of(const Tensor& leaf) { return leaf->grads().gradient; }

}  // namespace

// Only the first use counts: a gradient that the step finds later it has made itself.
void CapturedGradients::used(TensorImpl& leaf) {
    if (graph_.owns(Tensor(&leaf))) return;
    Notes& notes = notes_[&leaf];
    if (std::exchange(notes.met, true)) return;
    const GradientSlot& slot = leaf.grads().gradient;
    notes.from_before = true;
    notes.before = slot.address();
    // Its factor comes from before the step, and the captured work applies it: a replay would do so again.
    if (slot.pending()) repeatable_ = false;
}

void CapturedGradients::replaced(TensorImpl& leaf) {
    if (graph_.owns(Tensor(&leaf))) return;
    Notes& notes = notes_[&leaf];
    notes.met = notes.replaced = true;
}

void CapturedGradients::note_scale_state(TensorImpl& leaf, bool known, ScaleState parts) {
    if (graph_.owns(Tensor(&leaf))) return;
    Notes& notes = notes_[&leaf];
    notes.parts = known ? parts : sum_of_parts(notes.parts, parts);
    notes.parts_known = notes.parts_known || known;
}

void CapturedGradients::require_not_scale_state(TensorImpl& leaf, ScaleState parts) {
    const auto found = notes_.find(&leaf);
    const Notes notes = found != notes_.end() ? found->second : Notes{};
    if (!notes.parts_known) refused_.push_back({Tensor(&leaf), notes.parts, parts});
}

void CapturedGradients::follow_scale(ScaleState id, std::function<ScaleState()> current) {
    for (const FollowedScale& scale : scales_)
        if (of_one_scaler(id, scale.captured)) return;
    scales_.push_back({id, std::move(current)});
}

void CapturedGradients::leaf_gone(TensorImpl& leaf) noexcept { notes_.erase(&leaf); }

void CapturedGradients::finish() {
    if (!repeatable_) notes_.clear();
    for (const auto& [impl, notes] : notes_) {
        const Tensor leaf(impl);
        GradientSlot& slot = slot_of(leaf);
        if (notes.from_before) expected_.push_back({leaf, notes.before});
        if (notes.replaced || (notes.from_before && slot.address() != notes.before)) {
            const Tensor& gradient = slot.read();
            left_.push_back({leaf, gradient.defined() ? alias(gradient) : Tensor()});
        }
        if (notes.parts_known || notes.parts != 0) parts_.push_back({leaf, notes.parts_known, notes.parts});
    }
    notes_.clear();
}

bool CapturedGradients::fit() const {
    const auto now = [](const FollowedScale& scale) { return scale.current(); };
    return repeatable_ &&
           std::all_of(expected_.begin(), expected_.end(),
                       [](const Expected& e) { return slot_of(e.leaf).address() == e.gradient; }) &&
           std::none_of(refused_.begin(), refused_.end(), [&](const Refused& r) {
               return has_parts(sum_of_parts(slot_of(r.leaf).scale_state(), replayed(r.added, now)),
                                replayed(r.parts, now));
           });
}

void CapturedGradients::begin_replay() {
    for (FollowedScale& scale : scales_) scale.replayed = scale.current();
    for (const Expected& e : expected_) slot_of(e.leaf).read();
}

void CapturedGradients::restore() const {
    for (const Left& left : left_) {
        GradientSlot& slot = slot_of(left.leaf);
        if (!left.gradient.defined())
            slot.drop();
        else if (slot.address() != raw(left.gradient))
            slot.put({alias(left.gradient)});
    }
}

void CapturedGradients::restore_scale_state() const {
    const auto began = [](const FollowedScale& scale) { return scale.replayed; };
    for (const Parts& p : parts_) slot_of(p.leaf).note_replayed(p.known, replayed(p.parts, began));
}

}  // namespace mezzo
