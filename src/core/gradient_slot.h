// The gradient of a leaf and everything that belongs to it: the factor it may wait for (core/lazy_scale.h),
// what it is a sum of (core/scale_parts.h), who reduces it between processes (core/gradient_watcher.h), and what
// a captured step has to know of its use (core/captured_gradients.h). No other code reaches the tensor, so that
// no reader can forget one of these.
#pragma once

#include <cstdint>
#include <utility>

#include "core/ref.h"
#include "core/scale_parts.h"
#include "mezzo/tensor.h"

namespace mezzo {

struct TensorImpl;
class LazyScale;
void dispose(LazyScale* scale) noexcept;
class GradientWatcher;
void dispose(GradientWatcher* watcher) noexcept;

// A gradient outside of its slot.
struct Gradient {
    Tensor value = {};
    ScaleParts scale_parts = 0;
};

class GradientSlot {
public:
    explicit GradientSlot(TensorImpl& leaf);
    ~GradientSlot();
    GradientSlot(const GradientSlot&) = delete;
    GradientSlot& operator=(const GradientSlot&) = delete;

    // Questions about the gradient's presence, which neither launch nor count as a use.
    bool defined() const { return value_.defined(); }
    const void* address() const;  // of the first element; null without a gradient
    // Whether there is another handle of the gradient, or another tensor on its memory.
    bool shared() const;
    LazyScale* lazy_scale() const { return lazy_scale_.get(); }  // what the gradient waits for, or null

    // From now on `watcher` is asked before the gradient is used, in the leaf's name `place`; null: nobody is.
    void watch(const Ref<GradientWatcher>& watcher, std::uint32_t place);
    GradientWatcher* watcher() const { return watcher_.get(); }
    std::uint32_t watched_as() const { return watched_as_; }
    // For the watcher: the gradient as it is, whatever it waits for.
    const Tensor& unsettled() const { return value_; }
    // An update is coming, which has to find the gradient reduced. The slots of all gradients that the update
    // reads are told so before the first of them is read.
    void complete();

    // The gradient, undefined if there is none. A factor that it waits for is applied before.
    const Tensor& read();
    // The same for an update that multiplies by `own` itself: only another factor is applied.
    const Tensor& read_for_update(const LazyScale* own);
    // The gradient for a caller that writes all its elements: factor and parts are forgotten.
    const Tensor& overwrite();
    // The gradient for a kernel that adds to it, which has to exist. added: the parts of the addend.
    const Tensor& add_in_place(ScaleParts added);
    // Where there is no gradient yet and the watcher has a place for one: makes it, of zeros.
    void begin_at_home();
    // The watcher's place for a new gradient, to be written and then kept by add(); undefined if there is none.
    Tensor home() const;
    // Adds to the gradient: sum(total, contribution), where total is undefined if there is none yet.
    template <class Sum> void add(Tensor contribution, ScaleParts added, const Sum& sum) {
        begin_adding(added);
        sum(value_, std::move(contribution));
    }
    // Replaces the gradient; an undefined value removes it.
    void put(const Gradient& gradient);
    void drop() { put({}); }
    // Removes the gradient and returns it; put() restores it.
    Gradient take();

    // What the gradient is a sum of. No gradient, and one of zeros, has no parts.
    ScaleParts scale_parts() const;
    // Whether has_parts() holds of it. In a capture, replays require that the answer is no.
    bool has_scale_parts(ScaleParts parts);
    // A scaler has divided the gradient, or makes it wait for a factor that does.
    void note_unscaled() { set_scale_parts(unscaled_part); }
    // A replay has given these parts to the gradient. known: the gradient has no others; otherwise they are
    // added to those that it had.
    void note_replayed(bool known, ScaleParts parts);

private:
    friend class LazyScale;
    void settle();
    void note_use();
    void forget_lazy_scale() noexcept;
    void begin_adding(ScaleParts added);
    void set_scale_parts(ScaleParts parts);

    TensorImpl& leaf_;
    Tensor value_;
    Ref<LazyScale> lazy_scale_;
    Ref<GradientWatcher> watcher_;
    std::uint32_t watched_as_ = 0;
    std::uint32_t lazy_place_ = 0;  // among the slots of lazy_scale_
    ScaleParts scale_parts_ = 0;
};

}  // namespace mezzo
