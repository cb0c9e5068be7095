// State of an op next to a leaf, such as codes that the op has made of a weight. The leaf's GradMeta holds
// it. The op that makes it defines its class.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>

#include "core/gradient/gradient_hook.h"
#include "core/internal.h"
#include "core/memory/ref.h"
#include "core/tensor_impl.h"
#include "mezzo/tensor.h"

namespace mezzo {

void dispose(LeafState* state) noexcept;

class LeafState {
public:
    // The state of a leaf; null: none. Another thread may be making it, under `mutex`.
    static Ref<LeafState> of(const Tensor& leaf) {
        const GradMeta* const meta = leaf->grad_meta;
        if (meta == nullptr) return {};
        const std::scoped_lock lock(mutex);
        return meta->state;
    }
    MEZZO_INTERNAL static inline constinit std::mutex mutex{};  // of all leaves' GradMeta::state

    LeafState() = default;
    virtual ~LeafState() = default;
    LeafState(const LeafState&) = delete;
    LeafState& operator=(const LeafState&) = delete;

    // An optimizer of these parameters has run or skipped a step. ranks: those of the data-parallel training
    // that have states. reduce_max replaces a tensor by its largest values over them. Collective unless
    // `ranks` is none.
    using StepEnded = void(const Tensors& parameters, ReducedStates ranks,
                           const std::function<void(const Tensor&)>& reduce_max);
    // Called once for all parameters, also on a rank without states, because others may have some. The source
    // that defines their class sets it; null: the program has none.
    static inline constinit StepEnded* step_ended = nullptr;

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
