// state_dict() of optimizers: everything as tensors, so that any tensor file can hold it.
#include "optim/state_keys.h"

namespace mezzo::optim {

namespace {

Tensor number(double value) { return scalar(value, {.dtype = float64}); }

}  // namespace

StateDict Optimizer::state_dict() const {
    read_counts(*impl_);
    NoGrad plain;
    StateDict state;
    state.emplace_back("algorithm", number(double(impl_->groups.front().args.algorithm)));
    state.emplace_back("groups", number(double(impl_->groups.size())));
    state.emplace_back("applied_steps", number(double(impl_->applied)));
    state.emplace_back("skipped_steps", number(double(impl_->skipped)));
    for (std::size_t g = 0; g < impl_->groups.size(); ++g) {
        const Group& group = impl_->groups[g];
        state.emplace_back(group_key(g, "size"), number(double(group.count)));
        for (const Option& o : options) state.emplace_back(group_key(g, o.name), number(group.args.*o.value));
        for (const Flag& f : flags) state.emplace_back(group_key(g, f.name), number(group.args.*f.value));
        state.emplace_back(group_key(g, "initial_lr"), number(group.initial_lr));
    }
    if (impl_->steps.defined()) state.emplace_back("steps", impl_->steps.clone());
    for (std::size_t g = 0; g < impl_->groups.size(); ++g)
        for (std::size_t i = impl_->groups[g].first; i < impl_->groups[g].first + impl_->groups[g].count;
             ++i) {
            const Slot& slot = impl_->slots[i];
            for (int m = 0; m < 2; ++m)
                if (slot.moments[m].defined())
                    state.emplace_back(slot_key(i, moment_name(impl_->groups[g].args.algorithm, m)),
                                       slot.moments[m].clone());
            if (has_master(*impl_, slot) && slot.master.defined())
                state.emplace_back(slot_key(i, "master"), slot.master.detach().clone());
        }
    return state;
}

}  // namespace mezzo::optim
