// Records how a captured step uses the gradients of leaves. Before a replay it checks that the gradients are
// as the capture found them; after the replay it gives the leaves the gradients of the capture. The slots of
// the gradients (core/gradient/gradient_slot.h) report to the step's recorder (core/step_recorder.h), which
// calls it.
#pragma once

#include <functional>
#include <unordered_map>
#include <vector>

#include "core/gradient/scale_state.h"
#include "mezzo/tensor.h"

namespace mezzo {

struct TensorImpl;
class StepGraph;

class CapturedGradients {
public:
    explicit CapturedGradients(const StepGraph& graph) : graph_(graph) {}

    // While capturing:
    // A leaf's gradient, or its absence, is used. If it comes from before the step, replays require it at the
    // address that it has now.
    void used(TensorImpl& leaf);
    // A leaf's gradient is dropped or replaced, whatever it was.
    void replaced(TensorImpl& leaf);
    // The step has changed the scale state (core/gradient/scale_state.h) of a gradient. known: `parts` is the
    // whole state, whatever it was before the step; otherwise `parts` are added to it.
    void note_scale_state(TensorImpl& leaf, bool known, ScaleState parts);
    // Replays require that the gradient does not have all of these parts at this point of the step.
    void require_not_scale_state(TensorImpl& leaf, ScaleState parts);
    // The step uses or changes the scale `id`, which is current() right now. In replays, gradients get
    // the ids of the scaler's scales at that time. Only the first call for a scaler counts.
    void follow_scale(ScaleState id, std::function<ScaleState()> current);
    // A tensor with a gradient slot is destroyed: removes its records.
    void leaf_gone(TensorImpl& leaf) noexcept;

    // Called at the end of the capture, when no factor of the step is pending any more.
    void finish();

    // Whether the gradients meet the conditions of a replay. Launches nothing.
    bool fit() const;
    // Called before a replay is launched: applies pending factors of gradients that it reads, and reads the
    // ids of the scalers' scales.
    void begin_replay();
    // Called after the launch: sets the leaves' gradients to those that the step produced, at their addresses
    // of the capture, whatever the leaves hold by now (for example the gradients of another graph).
    void restore() const;
    // To be called last, because restore() leaves gradients without a scale state.
    void restore_scale_state() const;

private:
    // Records of one leaf while capturing. They hold no references, which would make gradients live longer
    // than without a capture.
    struct Notes {
        bool met = false;              // used or replaced
        bool from_before = false;      // used before it was replaced
        const void* before = nullptr;  // its address then
        bool replaced = false;
        bool parts_known = false;
        ScaleState parts = 0;
    };
    struct Expected {
        Tensor leaf;
        const void* gradient;  // its address
    };
    struct Left {
        Tensor leaf, gradient;
    };
    struct Parts {
        Tensor leaf;
        bool known;
        ScaleState parts;
    };
    struct Refused {
        Tensor leaf;
        ScaleState added, parts;  // added: by the step, before it queried `parts`
    };

    // A scaler that the step uses.
    struct FollowedScale {
        ScaleState captured;  // the id of its scale when the capture began
        std::function<ScaleState()> current;
        ScaleState replayed = 0;  // the id when the last replay began
    };
    // Converts a scale state of the capture to that of a replay. began(scale): the id when the replay began.
    template <class Began> ScaleState replayed(ScaleState parts, const Began& began) const {
        for (const FollowedScale& scale : scales_)
            if (of_one_scaler(parts, scale.captured))
                return (parts & scale_kinds) |
                       later_scale(began(scale), changes_between(scale.captured, parts & ~scale_kinds));
        return parts;
    }

    const StepGraph& graph_;
    bool repeatable_ = true;
    std::vector<FollowedScale> scales_;
    std::unordered_map<TensorImpl*, Notes> notes_;
    std::vector<Expected> expected_;
    std::vector<Left> left_;
    std::vector<Parts> parts_;
    std::vector<Refused> refused_;
};

}  // namespace mezzo
