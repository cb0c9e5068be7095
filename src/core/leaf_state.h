// State of an op next to a leaf, such as codes that the op has made of a weight. The leaf's GradMeta holds
// it. The op that makes it defines its class.
#pragma once

#include <atomic>
#include <cstdint>

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

    // Whether the ranks of a data-parallel training reduce it after each step.
    [[nodiscard]] virtual bool reduced() const = 0;

    // The leaf has new elements, which may be on another device.
    virtual void moved(Device device) = 0;
    // The state of a copy of the leaf; null: none.
    [[nodiscard]] virtual Ref<LeafState> copy() const = 0;

    std::atomic<std::uint32_t> refs{0};
};

inline void dispose(LeafState* state) noexcept { delete state; }

}  // namespace mezzo
