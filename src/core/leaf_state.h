// State of an op next to a leaf, such as codes that the op has made of a weight. The leaf's GradMeta holds
// it. The op that makes it defines its class.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>

#include "core/ref.h"
#include "mezzo/tensor.h"

namespace mezzo {

class LeafState;
void dispose(LeafState* state) noexcept;

class LeafState {
public:
    LeafState() = default;
    virtual ~LeafState() = default;
    LeafState(const LeafState&) = delete;
    LeafState& operator=(const LeafState&) = delete;

    // The optimizer that updates the leaf has run or skipped a step. Called once for all states of its
    // parameters: `states` has one for each parameter, or null. reduce_max replaces a tensor by its largest
    // values over the ranks of a data-parallel training.
    virtual void step_ended(std::span<LeafState* const> states,
                            const std::function<void(const Tensor&)>& reduce_max) = 0;

    // The leaf has new elements, which may be on another device.
    virtual void moved(Device device) = 0;
    // The state of a copy of the leaf; null: none.
    [[nodiscard]] virtual Ref<LeafState> copy() const = 0;

    std::atomic<std::uint32_t> refs{0};
};

inline void dispose(LeafState* state) noexcept { delete state; }

}  // namespace mezzo
