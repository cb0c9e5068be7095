// The gradient of a leaf with its hooks (core/gradient/gradient_hook.h), its scale state
// (core/gradient/scale_state.h), and the records of a captured step (core/step_recorder.h). No other code
// reaches the tensor, so that no reader can forget one of these.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "core/gradient/gradient_hook.h"
#include "core/gradient/scale_state.h"
#include "core/internal.h"
#include "mezzo/tensor.h"

namespace mezzo {

struct TensorImpl;

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
    // Whether a hook has something pending for it, which read() applies.
    bool pending() const;

    // A hook with the index by which it knows the leaf.
    struct Link {
        Ref<GradientHook> hook;
        std::uint32_t index = 0;
    };
    void link(Link link) { links_.push_back(std::move(link)); }
    void unlink(const GradientHook* hook) noexcept;
    // Whether a hook reduces the gradient between processes.
    bool reduced() const;
    // Whether those processes have LeafState that they reduce, as of the gradient's last reduction.
    ReducedStates reduced_states();
    // Replaces x by its largest values, element by element, over the processes between which a hook reduces
    // the gradient. Collective; without such a hook nothing changes.
    void reduce_max(const Tensor& x);
    // Replaces all links, and returns those that were there.
    std::vector<Link> exchange_links(std::vector<Link> links) {
        return std::exchange(links_, std::move(links));
    }
    // The link to a hook of this class; its hook is null if there is none.
    template <class Hook> Link find() const {
        for (const Link& link : links_)
            if (dynamic_cast<const Hook*>(link.hook.get()) != nullptr) return link;
        return {};
    }

    // For hooks. settle() waits for reductions that are under way. unsettled() is the gradient as it is,
    // whatever is pending or under way. set_applied() stores what a hook has made of the gradient.
    void settle();
    const Tensor& unsettled() const { return value_; }
    void set_applied(Tensor value) { value_ = std::move(value); }
    // Notifies the hooks that nothing is pending for the gradient any more.
    void forget_pending() noexcept;
    // Announces an update, which needs the gradient reduced. Called for all gradients of the update before
    // the first of them is read.
    void complete();

    // The gradient, undefined if there is none. Hooks apply first what they have pending.
    const Tensor& read();
    // The same for an update that applies `own` itself: only other hooks are applied.
    const Tensor& read_for_update(const GradientHook* own);
    // The gradient for a caller that writes all its elements: forgets what is pending, and the scale state.
    const Tensor& overwrite();
    // The gradient, which has to exist, for a kernel that adds to it. added: the scale state of the addend.
    const Tensor& add_in_place(ScaleState added);
    // Makes a gradient of zeros in a hook's memory, if there is no gradient yet and a hook has memory for it.
    void begin_in_bucket();
    // A hook's memory for a new gradient (a view of a bucket), to be written and then stored by add();
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
    // Sets the scale state after a scaler has divided the gradient, or has linked a factor that does.
    void note_unscaled() { set_scale_state(unscaled_part); }
    // Sets the scale state after a replay. known: `parts` is the whole state; otherwise it is added to the
    // state before.
    void note_replayed(bool known, ScaleState parts);

private:
    void note_use();
    template <class Call> void each_link(const Call& call);
    void begin_adding(ScaleState added);
    void set_scale_state(ScaleState parts);

    TensorImpl& leaf_;
    Tensor value_;
    std::vector<Link> links_;
    ScaleState scale_state_ = 0;
};

}  // namespace mezzo
