// What a captured step does to the gradients of leaves from outside of it, and what its replays therefore
// need, do and leave behind. The slots of the gradients (core/gradient_slot.h) tell it.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "mezzo/tensor.h"

namespace mezzo {

struct TensorImpl;
class StepGraph;

class CapturedGradients {
public:
    explicit CapturedGradients(const StepGraph& graph) : graph_(graph) {}

    // While capturing:
    // A leaf's gradient, or its absence, is used. If it comes from before the step, replays need it to be
    // where it is now.
    void used(TensorImpl& leaf);
    // A leaf's gradient is dropped or replaced, whatever it was.
    void replaced(TensorImpl& leaf);
    // What the step did to the scale's part in a gradient (core/scale_parts.h). known: these are all parts
    // it has now, whatever it had before the step.
    void note_scale_parts(TensorImpl& leaf, bool known, std::uint8_t parts);
    // Replays need the gradient not to have all of these parts here.
    void require_not_scale_parts(TensorImpl& leaf, std::uint8_t parts);
    // A tensor with gradient bookkeeping has been destroyed: it was the step's own.
    void leaf_gone(TensorImpl& leaf) noexcept;

    // The capture has ended, and no gradient waits that began to in the step.
    void finish();

    // Whether the gradients are where a replay needs them. Launches nothing.
    bool fit() const;
    // Before a replay is launched: gradients that it reads and that wait for a factor get it.
    void apply_lazy_scales() const;
    // After the launch: the gradients that the step leaves lie where the capture had them, whatever the
    // leaves hold by now (those of another graph, say).
    void restore() const;
    // At the end, because gradients that are put back have no parts.
    void restore_scale_parts() const;

private:
    // While capturing. No references, which would make gradients live longer than without a capture.
    struct Notes {
        bool met = false;              // used or replaced
        bool from_before = false;      // used before it was replaced
        const void* before = nullptr;  // its address then
        bool replaced = false;
        bool parts_known = false;
        std::uint8_t parts = 0;
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
        std::uint8_t parts;
    };
    struct Refused {
        Tensor leaf;
        std::uint8_t added, parts;  // added: by the step, before it asked for `parts`
    };

    const StepGraph& graph_;
    bool repeatable_ = true;
    std::unordered_map<TensorImpl*, Notes> notes_;
    std::vector<Expected> expected_;
    std::vector<Left> left_;
    std::vector<Parts> parts_;
    std::vector<Refused> refused_;
};

}  // namespace mezzo
