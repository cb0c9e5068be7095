#include "core/scale_parts.h"

#include "core/capture.h"
#include "core/tensor_impl.h"

namespace mezzo {

namespace {

bool is_zero(const Tensor& gradient) {
    const Storage& storage = *gradient->storage;
    return storage.zeroed == storage.version.load(std::memory_order_relaxed);
}

void set_parts(TensorImpl& leaf, std::uint8_t parts) {
    leaf.grad_meta->scale_parts = parts;
    if (StepGraph* graph = StepGraph::recording()) graph->note_scale_parts(leaf, true, parts);
}

}  // namespace

std::uint8_t scale_parts(const TensorImpl& leaf) {
    const GradMeta* const meta = leaf.grad_meta;
    if (meta == nullptr || !meta->grad.defined() || is_zero(meta->grad)) return 0;
    return meta->scale_parts;
}

bool has_scale_parts(TensorImpl& leaf, ScalePart parts) {
    if (StepGraph* graph = StepGraph::recording()) graph->require_not_scale_parts(leaf, parts);
    return (scale_parts(leaf) & parts) == parts;
}

void note_added(TensorImpl& leaf, bool scaled) {
    GradMeta& meta = *leaf.grad_meta;
    const std::uint8_t added = scaled ? scaled_part : 0;
    if (StepGraph* graph = StepGraph::recording()) graph->note_scale_parts(leaf, !meta.grad.defined(), added);
    meta.scale_parts = scale_parts(leaf) | added;
}

void note_unscaled(TensorImpl& leaf) { set_parts(leaf, unscaled_part); }

void forget_scale_parts(TensorImpl& leaf) {
    if (leaf.grad_meta != nullptr) set_parts(leaf, 0);
}

void replace_gradient(const Tensor& leaf, const Tensor& gradient) {
    const std::uint8_t parts = scale_parts(*leaf.impl());
    leaf.set_grad(gradient);
    set_parts(*leaf.impl(), parts);
}

// In-place writes of a replay do not count as versions, so a gradient that was zero before has to lose that
// mark here.
void note_replayed(TensorImpl& leaf, bool known, std::uint8_t parts) {
    GradMeta& meta = *leaf.grad_meta;
    meta.scale_parts = known ? parts : scale_parts(leaf) | parts;
    if (parts != 0 && meta.grad.defined() && is_zero(meta.grad))
        meta.grad->storage->version.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace mezzo
