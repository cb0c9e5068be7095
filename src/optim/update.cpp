// An optimizer's step: collects gradients, plans the update, runs it, and counts it.
#include "optim/update.h"

#include <algorithm>
#include <exception>
#include <unordered_map>
#include <utility>

#include "autograd/ready_backward.h"
#include "core/gradient/leaf_state.h"
#include "core/step_recorder.h"
#include "kernels/step_copies.h"
#include "mezzo/record_function.h"
#include "optim/optimizer.h"

namespace mezzo::optim {

const StepKernels& kernels_of(Device device) {
    const StepKernels* kernels = step_kernels(device.type());
    if (kernels != nullptr) return *kernels;
    check(backend(device.type()) != nullptr, ErrorKind::backend, "optimizer: this build has no backend for ",
          device);
    return copied_step_kernels(device);
}

void bump_version(const Tensor& x) {
    if (x->numel > 0) x->storage->version.fetch_add(1, std::memory_order_relaxed);
}

void bump_gradients(const GradientList& list) {
    for (const TensorImpl* leaf : list.leaves) bump_version(leaf->grad_meta->gradient.read());
}

GradientList gradient_list(const char* op, const Tensors& parameters, PendingFactors scaling,
                           std::size_t first_index) {
    GradientList list;
    for (const Tensor& parameter : parameters) {
        static_cast<void>(parameter.requires_grad());  // throws if the parameter is undefined
        if (parameter->grad_meta != nullptr) parameter->grad_meta->gradient.complete();
    }
    if (scaling == PendingFactors::keep) list.pending_factor = common_pending_factor(parameters);
    list.refs.reserve(parameters.size());
    list.indices.reserve(parameters.size());
    list.leaves.reserve(parameters.size());
    bool first = true;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
        const Tensor& parameter = parameters[i];
        GradientSlot& slot = parameter->grads().gradient;
        const Tensor& gradient = slot.read_for_update(list.pending_factor.get());
        if (!gradient.defined()) continue;
        ++list.with_gradient;
        if (first) list.device = gradient.device();
        first = false;
        check(gradient.device() == list.device && parameter.device() == list.device, ErrorKind::device, op,
              ": parameter ", first_index + i, " is on ", parameter.device(), " and its gradient on ",
              gradient.device(), ", others are on ", list.device, "; all must be on one device");
        if (gradient.numel() == 0) continue;
        if (!gradient.is_contiguous()) {
            const Tensor dense = gradient.detach().contiguous();
            slot.put({dense, slot.scale_state()});  // `gradient` is the slot's own
        }
        ParamRef ref{};
        ref.param = raw(parameter);
        ref.grad = raw(gradient);
        ref.numel = parameter.numel();
        ref.dtype = parameter.dtype();
        ref.grad_dtype = gradient.dtype();
        list.refs.push_back(ref);
        list.indices.push_back(first_index + i);
        list.leaves.push_back(parameter.impl());
    }
    return list;
}

namespace {

void mark_written(OptimizerImpl& optimizer, std::size_t index) {
    Slot& slot = optimizer.slots[index];
    bump_version(slot.param);
    for (const Tensor& state : slot.state)
        if (state.defined()) bump_version(state);
    if (has_master(optimizer, slot)) {
        bump_version(has_split_master(optimizer, slot) ? slot.low16 : slot.master);
        slot.master_version = slot.param.version();
    } else if (slot.param->grad_meta && is_16bit(slot.param->grad_meta->copy16.wanted)) {
        Copy16& copy16 = slot.param->grad_meta->copy16;
        copy16.version = slot.param.version();
        if (copy16.value.defined()) bump_version(copy16.value);  // a backend may have packed it
    }
}

}  // namespace

void refuse_in_update(const char* call, const OptimizerImpl& optimizer) {
    check(!optimizer.updating, ErrorKind::state, optimizer.type, ".", call,
          ": called inside the update() of the same optimizer; update() assigns to its argument only");
}

// The ranks of a sharded optimizer agree when each of them has all that its update needs.
GradientList plan_update(OptimizerImpl& optimizer, bool conditional, PendingFactors scaling) {
    refuse_in_update("step", optimizer);
    if (optimizer.sharing)
        refuse_in_capture("Optimizer.step", "exchange parts of a sharded optimizer's parameters");
    if (optimizer.user != nullptr) scaling = PendingFactors::apply;  // it reads the gradients as tensors
    GradientList list;
    std::exception_ptr error;
    try {
        list = gradient_list(optimizer.type, optimizer.params(), scaling);
        if (list.with_gradient != 0) prepare_update(optimizer, list, conditional);
    } catch (...) {
        if (!optimizer.sharing) throw;
        error = std::current_exception();
    }
    if (optimizer.sharing) optimizer.sharing->begin_update(optimizer, list.indices, error);
    return list;
}

void refuse_scale_state(const char* op, const OptimizerImpl& optimizer, ScaleState parts,
                        const char* advice) {
    for (std::size_t i = 0; i < optimizer.slots.size(); ++i) {
        GradientSlot& gradient = optimizer.slots[i].param->grads().gradient;
        if (!gradient.has_scale_state(parts)) continue;
        const ScaleState held = gradient.scale_state();
        const bool mixed = (held & two_scales) != 0;
        const bool other = (held & unscaled_part) == 0 && under_other_scale(held, parts);
        fail(ErrorKind::state, op, ": in the gradient of ", optimizer.describe(i), " of this ",
             optimizer.type,
             mixed   ? " parts under two different scales were added"
             : other ? " there is one under another scale, of before an update() or of another GradScaler"
             : (held & unscaled_part) != 0 ? " scaled ones were added to unscaled ones"
                                           : " there is a scaled one that came after unscale_()",
             "; ",
             mixed || other
                 ? "call update() after the last step() of an iteration, then zero_grad(), and use one "
                   "GradScaler per optimizer"
                 : advice);
    }
}

bool run_update(OptimizerImpl& optimizer, const GradientList& plan, bool conditional,
                const GradientFactor& scale) {
    if (plan.with_gradient == 0) return false;
    try {
        if (optimizer.user != nullptr) {
            run_user_update(optimizer, plan, conditional, scale);
        } else {
            std::vector<StepArgs> groups;
            for (const ParamRef& ref : plan.refs)  // in the order of the groups
                while (groups.size() <= ref.group)
                    groups.push_back(step_args(optimizer, optimizer.groups[groups.size()]));
            if (thread_state.recorder != nullptr) put_rates_on_device(optimizer, groups);
            std::vector<ParamRef> parts;
            if (optimizer.sharing) parts = own_parts(optimizer, plan);
            StepState* const state = optimizer.step_state();
            kernels_of(optimizer.device())
                .update(optimizer.sharing ? parts : plan.refs, groups, scale,
                        conditional ? &state->found_inf : nullptr, state);
            if (optimizer.sharing) complete_update(optimizer, plan);
        }
    } catch (...) {
        if (optimizer.sharing) optimizer.sharing->give_up();
        throw;
    }
    note_update(optimizer, plan.indices, conditional);
    if (thread_state.recorder != nullptr) follow_replays(optimizer, plan, conditional);
    end_step(optimizer);
    return true;
}

void end_step(OptimizerImpl& optimizer) {
    bool any = false;
    GradientSlot* reduced = nullptr;  // one of the gradients that ranks reduce
    ReducedStates ranks = ReducedStates::none;
    for (const Slot& slot : optimizer.slots) {
        any = any || slot.param->grads().state;
        GradientSlot& gradient = slot.param->grads().gradient;
        if (!gradient.reduced()) continue;
        reduced = &gradient;
        ranks = std::max(ranks, gradient.reduced_states());
    }
    if (LeafState::step_ended == nullptr || (!any && ranks == ReducedStates::none)) return;
    LeafState::step_ended(optimizer.params(), ranks, [&](const Tensor& x) { reduced->reduce_max(x); });
}

void note_update(OptimizerImpl& optimizer, const std::vector<std::size_t>& indices, bool conditional) {
    for (const std::size_t index : indices) mark_written(optimizer, index);
    bump_version(optimizer.state);
    bump_version(optimizer.steps);
    if (conditional) {
        optimizer.counts_on_device = true;
    } else if (!optimizer.counts_on_device) {
        ++optimizer.applied;
    }
}

void read_counts(OptimizerImpl& optimizer) {
    if (!optimizer.counts_on_device) return;
    const auto counts = read_struct<StepState>(optimizer.state);
    optimizer.applied = std::int64_t(counts.applied);
    optimizer.skipped = std::int64_t(counts.skipped);
    optimizer.counts_on_device = false;
}

namespace {

// Counts a step that the host knows of, in the device's counter, too, which is a member of StepState.
void count_step(OptimizerImpl& optimizer, std::size_t member, std::int64_t& count) {
    prepare_state(optimizer);
    const auto index = std::int64_t(member / sizeof(float));
    optimizer.state.slice(0, index, index + 1).add_(ones({1}, {.device = optimizer.device()}));
    if (!optimizer.counts_on_device) ++count;
}

// Updates one parameter with its gradient. counts: its StepState counts the update.
void update_alone(OptimizerImpl& optimizer, std::size_t index, StepState* counts) {
    const Slot& slot = optimizer.slots[index];
    GradientList list = gradient_list(optimizer.type, {slot.param}, PendingFactors::apply, index);
    if (list.refs.empty()) return;
    prepare_update(optimizer, list, false);
    list.refs.front().group = 0;
    const StepArgs args = step_args(optimizer, optimizer.groups[slot.group]);
    kernels_of(list.device).update(list.refs, {&args, 1}, {}, nullptr, counts);
    mark_written(optimizer, index);
    bump_version(optimizer.steps);
}

// Throws what an update of any parameter would throw, while none has been updated.
void check_releasable(const OptimizerImpl& optimizer, const std::string& where) {
    refuse_in_update("step_in_backward", optimizer);
    refuse_in_capture(where.c_str(), "update parameters during a backward pass");
    check(optimizer.kind->used != nullptr, ErrorKind::value, where,
          ": this optimizer in ops reads all gradients at once; call backward() and step()");
    check(optimizer.sharing == nullptr, ErrorKind::state, where,
          ": a sharded optimizer exchanges all parameters at once; call backward() and step()");
    for (std::size_t i = 0; i < optimizer.slots.size(); ++i) {
        const Tensor& param = optimizer.slots[i].param;
        const GradientSlot& gradient = param->grads().gradient;
        check(!gradient.defined(), ErrorKind::state, where, ": ", optimizer.describe(i),
              " has a gradient already; call zero_grad() before, gradients cannot be accumulated");
        check(!gradient.reduced(), ErrorKind::state, where, ": the gradient of ", optimizer.describe(i),
              " is reduced between processes; call backward() and step()");
        check(param.is_contiguous(), ErrorKind::value, where, ": ", optimizer.describe(i),
              " is not contiguous");
        check(param.device() == optimizer.device(), ErrorKind::device, where, ": ", optimizer.describe(i),
              " is on ", param.device(), ", others are on ", optimizer.device(),
              "; all must be on one device");
    }
    check_masters(optimizer);
}

}  // namespace

void Optimizer::step() {
    const insight::RecordFunction scope("Optimizer.step");
    if (std::exchange(impl_->preset.skips_next_step, false)) {
        zero_grad();
        count_step(*impl_, offsetof(StepState, skipped), impl_->skipped);
        return end_step(*impl_);
    }
    refuse_scale_state("Optimizer.step", *impl_, both_parts,
                       "call zero_grad() before the first backward() of an iteration");
    const GradientList plan = plan_update(*impl_, false, PendingFactors::keep);
    run_update(*impl_, plan, false, plan.pending_factor ? plan.pending_factor->scale() : GradientFactor{});
}

void Optimizer::step_in_backward(const Tensor& loss) {
    const insight::RecordFunction scope("Optimizer.step_in_backward");
    OptimizerImpl& own = *impl_;
    const std::string where = own.type + std::string(".step_in_backward");
    check_releasable(own, where);
    make_missing_copies16(own);
    std::unordered_map<const TensorImpl*, std::size_t> indices;
    for (std::size_t i = 0; i < own.slots.size(); ++i) indices.emplace(own.slots[i].param.impl(), i);
    Tensor counts;  // of single updates, which are no steps
    backward_until_ready(where.c_str(), loss, [&](const Tensor& leaf) {
        const auto at = indices.find(leaf.impl());
        GradientSlot& gradient = leaf->grads().gradient;
        if (at == indices.end() || !gradient.defined()) return;
        check(!gradient.has_scale_state(scaled_part), ErrorKind::state, where,
              ": the loss is scaled; a GradScaler looks at all gradients before the first update");
        if (!counts.defined())
            counts = zeros({std::int64_t(sizeof(StepState) / sizeof(float))}, {.device = leaf.device()});
        update_alone(own, at->second, static_cast<StepState*>(raw(counts)));
        leaf.set_grad({});
    });
    if (!counts.defined()) return;
    count_step(own, offsetof(StepState, applied), own.applied);
    end_step(own);
}

}  // namespace mezzo::optim
