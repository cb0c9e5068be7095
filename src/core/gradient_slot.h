// The gradient of a leaf with its state: a pending factor (core/pending_factor.h), its scale state
// (core/scale_state.h), the hook that reduces it between processes (core/gradient_hook.h), and the records
// of a captured step (core/step_recorder.h). No other code reaches the tensor, so that no reader can
// forget one of these.
#pragma once

#include <cstdint>
#include <utility>

#include "core/internal.h"
#include "core/ref.h"
#include "core/scale_state.h"
#include "mezzo/tensor.h"

namespace mezzo {

struct TensorImpl;
class PendingFactor;
void dispose(PendingFactor* scale) noexcept;
class GradientHook;
void dispose(GradientHook* hook) noexcept;

// A gradient taken out of its slot, with its scale state.
struct Gradient {
    Tensor value = {};
    ScaleState scale_state = 0;
};

class MEZZO_INTERNAL GradientSlot {
public:
    explicit GradientSlot(TensorImpl& leaf);
    ~GradientSlot();
    GradientSlot(const GradientSlot&) = delete;
    GradientSlot& operator=(const GradientSlot&) = delete;

    // Queries of the gradient's presence. They neither launch nor count as a use.
    bool defined() const { return value_.defined(); }
    const void* address() const;  // of the first element; null without a gradient
    // Whether there is another handle of the gradient, or another tensor on its memory.
    bool shared() const;
    PendingFactor* pending_factor() const { return pending_factor_.get(); }  // the pending factor, or null

    // Sets the hook that is called before the gradient is used, with the leaf's index `index`; null removes
    // it.
    void set_hook(const Ref<GradientHook>& hook, std::uint32_t index);
    GradientHook* hook() const { return hook_.get(); }
    std::uint32_t hook_index() const { return hook_index_; }
    // For the hook: the gradient as it is, also with a pending factor or reduction.
    const Tensor& unsettled() const { return value_; }
    // Announces an update, which needs the gradient reduced. Called for all gradients of the update before
    // the first of them is read.
    void complete();

    // The gradient, undefined if there is none. A pending factor is applied first.
    const Tensor& read();
    // The same for an update that multiplies by `own` itself: only another pending factor is applied.
    const Tensor& read_for_update(const PendingFactor* own);
    // The gradient for a caller that writes all its elements: drops a pending factor and the scale state.
    const Tensor& overwrite();
    // The gradient, which has to exist, for a kernel that adds to it. added: the scale state of the addend.
    const Tensor& add_in_place(ScaleState added);
    // Makes a gradient of zeros in the hook's memory, if there is no gradient yet and the hook has memory for
    // it.
    void begin_in_bucket();
    // The hook's memory for a new gradient (a view of a bucket), to be written and then stored by add();
    // undefined if there is none.
    Tensor bucket_view() const;
    // Adds to the gradient: sum(total, contribution), where total is undefined if there is none yet.
    template <class Sum> void add(Tensor contribution, ScaleState added, const Sum& sum) {
        begin_adding(added);
        sum(value_, std::move(contribution));
    }
    // Replaces the gradient; an undefined value removes it.
    void put(const Gradient& gradient);
    void drop() { put({}); }
    // Removes the gradient and returns it; put() restores it.
    Gradient take();

    // The scale state: which kinds of parts the gradient is a sum of. It is 0 without a gradient, and for one
    // of zeros.
    ScaleState scale_state() const;
    // Whether has_parts() is true of it. In a capture, replays require that it is false.
    bool has_scale_state(ScaleState parts);
    // Sets the scale state after a scaler has divided the gradient, or has given it a pending factor that
    // does.
    void note_unscaled() { set_scale_state(unscaled_part); }
    // Sets the scale state after a replay. known: `parts` is the whole state; otherwise it is added to the
    // state before.
    void note_replayed(bool known, ScaleState parts);

private:
    friend class PendingFactor;
    void settle();
    void note_use();
    void forget_pending_factor() noexcept;
    void begin_adding(ScaleState added);
    void set_scale_state(ScaleState parts);

    TensorImpl& leaf_;
    Tensor value_;
    Ref<PendingFactor> pending_factor_;
    Ref<GradientHook> hook_;
    std::uint32_t hook_index_ = 0;
    std::uint32_t pending_index_ = 0;  // among the slots of pending_factor_
    ScaleState scale_state_ = 0;
};

}  // namespace mezzo
