#include "core/gradient_slot.h"

#include "core/gradient_hook.h"
#include "core/pending_factor.h"
#include "core/step_recorder.h"
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
    if (StepRecorder* const graph = thread_state.recorder) graph->leaf_destroyed(leaf_);
    forget_pending_factor();
}

const void* GradientSlot::address() const { return value_.defined() ? raw(value_) : nullptr; }

bool GradientSlot::shared() const {
    if (!value_.defined()) return false;
    const std::uint32_t own = hook_ && hook_->is_bucket_view(hook_index_, value_) ? 2 : 1;
    return value_->refs.load() != 1 || value_->storage->refs.load() != own;
}

void GradientSlot::set_hook(const Ref<GradientHook>& hook, std::uint32_t index) {
    hook_ = hook;
    hook_index_ = index;
}

void GradientSlot::settle() {
    if (hook_) hook_->settle(hook_index_);
}

void GradientSlot::complete() {
    if (hook_) hook_->complete(hook_index_);
}

Tensor GradientSlot::bucket_view() const { return hook_ ? hook_->bucket_view(hook_index_) : Tensor(); }

void GradientSlot::begin_in_bucket() {
    if (!hook_ || value_.defined()) return;
    hook_->adding(hook_index_);
    if (const Tensor view = bucket_view(); view.defined()) put({view.zero_()});
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
    set_scale_state(0);
    return value_;
}

const Tensor& GradientSlot::add_in_place(ScaleState added) {
    begin_adding(added);
    return value_;
}

void GradientSlot::begin_adding(ScaleState added) {
    if (hook_) hook_->adding(hook_index_);
    read();
    if (StepRecorder* const graph = thread_state.recorder)
        graph->scale_state_changed(leaf_, !value_.defined(), added);
    scale_state_ = sum_of_parts(scale_state(), added);
}

void GradientSlot::put(const Gradient& gradient) {
    settle();
    forget_pending_factor();
    if (StepRecorder* const graph = thread_state.recorder) graph->gradient_replaced(leaf_);
    value_ = gradient.value;
    set_scale_state(gradient.scale_state);
}

Gradient GradientSlot::take() {
    Gradient gradient{.value = read(), .scale_state = scale_state()};
    drop();
    return gradient;
}

ScaleState GradientSlot::scale_state() const {
    return value_.defined() && !is_zero(value_) ? scale_state_ : 0;
}

bool GradientSlot::has_scale_state(ScaleState parts) {
    if (StepRecorder* const graph = thread_state.recorder) graph->require_not_scale_state(leaf_, parts);
    return has_parts(scale_state(), parts);
}

// A replay's writes do not raise the storage's version, so the mark of a zero gradient is removed here.
void GradientSlot::note_replayed(bool known, ScaleState parts) {
    scale_state_ = known ? parts : sum_of_parts(scale_state(), parts);
    if (parts != 0 && value_.defined() && is_zero(value_))
        value_->storage->version.fetch_add(1, std::memory_order_relaxed);
}

void GradientSlot::note_use() {
    if (StepRecorder* const graph = thread_state.recorder) graph->gradient_used(leaf_);
}

void GradientSlot::forget_pending_factor() noexcept {
    if (pending_factor_) pending_factor_->detach(*this);
}

void GradientSlot::set_scale_state(ScaleState parts) {
    scale_state_ = parts;
    if (StepRecorder* const graph = thread_state.recorder) graph->scale_state_changed(leaf_, true, parts);
}

}  // namespace mezzo
