#include "core/gradient/gradient_slot.h"

#include <algorithm>

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
    forget_pending();
}

const void* GradientSlot::address() const { return value_.defined() ? raw(value_) : nullptr; }

bool GradientSlot::shared() const {
    if (!value_.defined()) return false;
    const bool in_bucket = std::any_of(links_.begin(), links_.end(), [this](const Link& link) {
        return link.hook->is_bucket_view(link.index, value_);
    });
    return value_->refs.load() != 1 || value_->storage->refs.load() != (in_bucket ? 2u : 1u);
}

bool GradientSlot::pending() const {
    return std::any_of(links_.begin(), links_.end(),
                       [](const Link& link) { return link.hook->pending(link.index); });
}

bool GradientSlot::reduced() const {
    return std::any_of(links_.begin(), links_.end(), [](const Link& link) { return link.hook->reduces(); });
}

void GradientSlot::unlink(const GradientHook* hook) noexcept {
    const auto found = std::find_if(links_.begin(), links_.end(),
                                    [hook](const Link& link) { return link.hook.get() == hook; });
    if (found == links_.end()) return;
    const Link last = std::move(*found);  // may hold the last reference to the hook
    links_.erase(found);
}

// The call may unlink its hook.
template <class Call> void GradientSlot::each_link(const Call& call) {
    for (std::size_t i = 0; i < links_.size();) {
        const Link link = links_[i];
        call(*link.hook, link.index);
        if (i < links_.size() && links_[i].hook == link.hook) ++i;
    }
}

ReducedStates GradientSlot::reduced_states() {
    ReducedStates result = ReducedStates::none;
    each_link([&](GradientHook& hook, std::uint32_t index) {
        result = std::max(result, hook.reduced_states(index));
    });
    return result;
}

void GradientSlot::reduce_max(const Tensor& x) {
    each_link([&](GradientHook& hook, std::uint32_t) { hook.reduce_max(x); });
}

void GradientSlot::settle() {
    each_link([](GradientHook& hook, std::uint32_t index) { hook.settle(index); });
}

void GradientSlot::forget_pending() noexcept {
    each_link([](GradientHook& hook, std::uint32_t index) { hook.forget(index); });
}

void GradientSlot::complete() {
    each_link([](GradientHook& hook, std::uint32_t index) { hook.complete(index); });
}

Tensor GradientSlot::bucket_view() const {
    for (const Link& link : links_)
        if (Tensor view = link.hook->bucket_view(link.index); view.defined()) return view;
    return {};
}

void GradientSlot::begin_in_bucket() {
    if (links_.empty() || value_.defined()) return;
    each_link([](GradientHook& hook, std::uint32_t index) { hook.adding(index); });
    if (const Tensor view = bucket_view(); view.defined()) put({view.zero_()});
}

const Tensor& GradientSlot::read() { return read_for_update(nullptr); }

const Tensor& GradientSlot::read_for_update(const GradientHook* own) {
    settle();
    note_use();
    each_link([own](GradientHook& hook, std::uint32_t index) {
        if (&hook != own) hook.apply(index);
    });
    return value_;
}

const Tensor& GradientSlot::overwrite() {
    settle();
    forget_pending();
    note_use();
    set_scale_state(0);
    return value_;
}

const Tensor& GradientSlot::add_in_place(ScaleState added) {
    begin_adding(added);
    return value_;
}

void GradientSlot::begin_adding(ScaleState added) {
    each_link([](GradientHook& hook, std::uint32_t index) { hook.adding(index); });
    read();
    if (StepRecorder* const graph = thread_state.recorder)
        graph->scale_state_changed(leaf_, !value_.defined(), added);
    scale_state_ = sum_of_parts(scale_state(), added);
}

void GradientSlot::put(const Gradient& gradient) {
    settle();
    forget_pending();
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
    if (leaf_.numel == 0) return false;  // a scaler passes over empty gradients
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

void GradientSlot::set_scale_state(ScaleState parts) {
    scale_state_ = parts;
    if (StepRecorder* const graph = thread_state.recorder) graph->scale_state_changed(leaf_, true, parts);
}

}  // namespace mezzo
