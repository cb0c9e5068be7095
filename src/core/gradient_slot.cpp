#include "core/gradient_slot.h"

#include "core/step_graph.h"
#include "core/gradient_hook.h"
#include "core/pending_factor.h"
#include "core/tensor_impl.h"

namespace mezzo {

namespace {

bool is_zero(const Tensor& gradient) {
    const Storage& storage = *gradient->storage;
    return storage.zeroed == storage.version.load(std::memory_order_relaxed);
}

}  // namespace

GradientSlot::GradientSlot(TensorImpl& leaf) : leaf_(leaf) {}

GradientSlot::~GradientSlot() {
    if (StepGraph* const graph = StepGraph::capturing()) graph->gradients().leaf_gone(leaf_);
    forget_pending_factor();
}

const void* GradientSlot::address() const { return value_.defined() ? raw(value_) : nullptr; }

bool GradientSlot::shared() const {
    if (!value_.defined()) return false;
    const std::uint32_t own = watcher_ && watcher_->at_home(watched_as_, value_) ? 2 : 1;
    return value_->refs.load() != 1 || value_->storage->refs.load() != own;
}

void GradientSlot::watch(const Ref<GradientWatcher>& watcher, std::uint32_t place) {
    watcher_ = watcher;
    watched_as_ = place;
}

void GradientSlot::settle() {
    if (watcher_) watcher_->settle(watched_as_);
}

void GradientSlot::complete() {
    if (watcher_) watcher_->complete(watched_as_);
}

Tensor GradientSlot::home() const { return watcher_ ? watcher_->home(watched_as_) : Tensor(); }

void GradientSlot::begin_at_home() {
    if (!watcher_ || value_.defined()) return;
    watcher_->adding(watched_as_);
    if (const Tensor place = home(); place.defined()) put({place.zero_()});
}

const Tensor& GradientSlot::read() { return read_for_update(nullptr); }

const Tensor& GradientSlot::read_for_update(const PendingFactor* own) {
    settle();
    note_use();
    if (pending_factor_ && pending_factor_.get() != own) pending_factor_->apply();
    return value_;
}

const Tensor& GradientSlot::overwrite() {
    settle();
    forget_pending_factor();
    note_use();
    set_scale_parts(0);
    return value_;
}

const Tensor& GradientSlot::add_in_place(ScaleParts added) {
    begin_adding(added);
    return value_;
}

void GradientSlot::begin_adding(ScaleParts added) {
    if (watcher_) watcher_->adding(watched_as_);
    read();
    if (StepGraph* const graph = StepGraph::capturing())
        graph->gradients().note_scale_parts(leaf_, !value_.defined(), added);
    scale_parts_ = sum_of_parts(scale_parts(), added);
}

void GradientSlot::put(const Gradient& gradient) {
    settle();
    forget_pending_factor();
    if (StepGraph* const graph = StepGraph::capturing()) graph->gradients().replaced(leaf_);
    value_ = gradient.value;
    set_scale_parts(gradient.scale_parts);
}

Gradient GradientSlot::take() {
    Gradient gradient{.value = read(), .scale_parts = scale_parts()};
    drop();
    return gradient;
}

ScaleParts GradientSlot::scale_parts() const {
    return value_.defined() && !is_zero(value_) ? scale_parts_ : 0;
}

bool GradientSlot::has_scale_parts(ScaleParts parts) {
    if (StepGraph* const graph = StepGraph::capturing())
        graph->gradients().require_not_scale_parts(leaf_, parts);
    return has_parts(scale_parts(), parts);
}

// A replay's writes do not raise the storage's version, so the mark of a zero gradient is removed here.
void GradientSlot::note_replayed(bool known, ScaleParts parts) {
    scale_parts_ = known ? parts : sum_of_parts(scale_parts(), parts);
    if (parts != 0 && value_.defined() && is_zero(value_))
        value_->storage->version.fetch_add(1, std::memory_order_relaxed);
}

void GradientSlot::note_use() {
    if (StepGraph* const graph = StepGraph::capturing()) graph->gradients().used(leaf_);
}

void GradientSlot::forget_pending_factor() noexcept {
    if (pending_factor_) pending_factor_->detach(*this);
}

void GradientSlot::set_scale_parts(ScaleParts parts) {
    scale_parts_ = parts;
    if (StepGraph* const graph = StepGraph::capturing())
        graph->gradients().note_scale_parts(leaf_, true, parts);
}

}  // namespace mezzo
