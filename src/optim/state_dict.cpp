// state_dict() of optimizers: everything as tensors, so that any tensor file can hold it.
#include "mezzo/ops.h"
#include "optim/state_keys.h"

namespace mezzo::optim {

namespace {

Tensor number(double value) { return scalar(value, {.dtype = float64}); }

// A copy of a parameter's state or master. If this process has only a shard of it, the copy is a partial
// tensor in host memory, which is added to `incomplete`.
Tensor copy_of(const OptimizerImpl& optimizer, std::size_t index, const Tensor& kept,
               std::vector<Incomplete>& incomplete) {
    const Slot& slot = optimizer.slots[index];
    if (!slot.part) return kept.detach().clone();
    const Tensor whole = empty(slot.param.shape(), {.dtype = kept.dtype()});
    slot.kept_part(whole).copy_(kept.detach());
    incomplete.push_back({index, whole});
    return whole;
}

}  // namespace

StateDict Optimizer::state_dict() const {
    read_counts(*impl_);
    NoGrad plain;
    StateDict state;
    state.emplace_back("algorithm", number(impl_->kind->code));
    state.emplace_back("groups", number(double(impl_->groups.size())));
    state.emplace_back("applied_steps", number(double(impl_->applied)));
    state.emplace_back("skipped_steps", number(double(impl_->skipped)));
    for (std::size_t g = 0; g < impl_->groups.size(); ++g) {
        const Group& group = impl_->groups[g];
        state.emplace_back(group_key(g, "size"), number(double(group.count)));
        for (std::size_t i = 0; i < group.options.size(); ++i)
            state.emplace_back(group_key(g, impl_->kind->options[i].name), number(group.options[i]));
        state.emplace_back(group_key(g, "initial_lr"), number(group.initial_lr));
    }
    if (impl_->steps.defined())
        for (std::size_t k = 0; k < impl_->kind->numbers.size(); ++k)
            state.emplace_back(impl_->kind->numbers[k], impl_->steps.select(1, std::int64_t(k)).clone());
    std::vector<Incomplete> incomplete;
    for (std::size_t i = 0; i < impl_->slots.size(); ++i) {
        const Slot& slot = impl_->slots[i];
        for (std::size_t k = 0; k < slot.state.size(); ++k)
            if (slot.state[k].defined())
                state.emplace_back(slot_key(i, impl_->kind->state[k]),
                                   copy_of(*impl_, i, slot.state[k], incomplete));
        if (has_master(*impl_, slot) && slot.master.defined())
            state.emplace_back(slot_key(i, "master"), copy_of(*impl_, i, slot.master, incomplete));
    }
    if (impl_->sharing) impl_->sharing->complete(incomplete);
    return state;
}

}  // namespace mezzo::optim
