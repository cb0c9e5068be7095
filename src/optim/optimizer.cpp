// The base of the optimizers: groups, options, learning rates, gradients, and steps.
#include "optim/optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <numeric>
#include <ostream>
#include <unordered_map>

#include "core/capture.h"
#include "core/unlisted.h"
#include "mezzo/ops.h"
#include "mezzo/record_function.h"
#include "optim/user_update.h"

namespace mezzo::optim {

Device OptimizerImpl::device() const { return slots.empty() ? cpu_device : slots.front().param.device(); }

Tensors OptimizerImpl::params() const {
    Tensors result;
    for (const Slot& slot : slots) result.push_back(slot.param);
    return result;
}

std::string OptimizerImpl::describe(std::size_t slot) const {
    const std::string number = "parameter " + std::to_string(slot);
    return slots[slot].name.empty() ? number : slots[slot].name + " (" + number + ")";
}

bool has_master(const OptimizerImpl& optimizer, const Slot& slot) {
    return optimizer.masters && is_16bit(slot.param.dtype());
}

std::unique_ptr<OptimizerImpl> make_optimizer(const std::shared_ptr<const Kind>& kind) {
    static std::atomic<std::uint64_t> next_id{1};
    auto optimizer = std::make_unique<OptimizerImpl>();
    add_reference(optimizer->refs);  // by the Optimizer
    optimizer->kind = kind;
    optimizer->type = kind->type.c_str();
    optimizer->id = next_id.fetch_add(1, std::memory_order_relaxed);
    return optimizer;
}

namespace {

void refuse_new_rate(const OptimizerImpl& optimizer) {
    refuse_in_capture((optimizer.type + std::string(".set_lr")).c_str(), "change the learning rate");
}

using Known = std::unordered_map<const TensorImpl*, std::size_t>;

void add_slot(OptimizerImpl& optimizer, Known& known, const Tensor& param, const std::string& name) {
    const std::size_t index = optimizer.slots.size();
    check(param.defined(), ErrorKind::value, optimizer.type, ": parameter ", index, " is undefined");
    check(is_floating(param.dtype()) && param.is_leaf(), ErrorKind::value, optimizer.type, ": parameter ",
          index, " of dtype ", param.dtype(), param.is_leaf() ? "" : " is the result of an op",
          "; a floating leaf is needed");
    const auto [first, fresh] = known.emplace(param.impl(), index);
    check(fresh, ErrorKind::value, optimizer.type, ": parameters ", first->second, " and ", index,
          " are the same tensor; list it once");
    mark_listed(param);
    Slot slot;
    slot.param = param;
    slot.name = name;
    slot.state.resize(optimizer.kind->state.size());
    optimizer.slots.push_back(std::move(slot));
}

// Fills `ref` for the kernels. used: used_state() of the parameter's group.
void fill_ref(OptimizerImpl& optimizer, unsigned used, std::size_t index, bool conditional, ParamRef& ref) {
    Slot& slot = optimizer.slots[index];
    if (!slot.param.is_contiguous())
        fail(ErrorKind::value, optimizer.type, ": ", optimizer.describe(index), " is not contiguous");
    const bool mastered = has_master(optimizer, slot);
    if (mastered) {
        refresh_master(slot);
        ref.param = raw(slot.master);
        ref.dtype = float32;
        ref.copy16 = raw(slot.param);
        ref.copy16_dtype = slot.param.dtype();
    } else if (Tensor* const copy16 = writable_copy16(slot, conditional)) {
        ref.copy16 = raw(*copy16);
        ref.copy16_dtype = copy16->dtype();
    }
    for (std::size_t k = 0; k < slot.state.size(); ++k) {
        if ((used >> k & 1) == 0) continue;
        make_or_move(slot.state[k], slot.kept_shape(), state_dtype(slot), slot.param.device());
        if (optimizer.user == nullptr) ref.state[k] = raw(slot.state[k]);
    }
    ref.step = static_cast<float*>(raw(optimizer.steps)) + index * optimizer.kind->numbers.size();
}

void mark_written(OptimizerImpl& optimizer, std::size_t index) {
    Slot& slot = optimizer.slots[index];
    bump_version(slot.param);
    for (const Tensor& state : slot.state)
        if (state.defined()) bump_version(state);
    if (has_master(optimizer, slot)) {
        bump_version(slot.master);
        slot.master_version = slot.param.version();
    } else if (slot.param->grad_meta && is_16bit(slot.param->grad_meta->copy16.wanted)) {
        slot.param->grad_meta->copy16.version = slot.param.version();
    }
}

}  // namespace

void add_group(OptimizerImpl& optimizer, const Tensors& params, const StateDict& named,
               const std::vector<double>& options) {
    check_options(optimizer.type, *optimizer.kind, options);
    Group group;
    group.first = optimizer.slots.size();
    group.options = options;
    group.initial_lr = group.lr();
    Known known;
    for (std::size_t i = 0; i < optimizer.slots.size(); ++i)
        known.emplace(optimizer.slots[i].param.impl(), i);
    for (const Tensor& param : params) add_slot(optimizer, known, param, "");
    for (const auto& [name, param] : named) add_slot(optimizer, known, param, name);
    group.count = optimizer.slots.size() - group.first;
    optimizer.groups.push_back(group);
}

void prepare_state(OptimizerImpl& optimizer) {
    const Device device = optimizer.device();
    const auto numbers = std::int64_t(optimizer.kind->numbers.size());
    make_or_move(optimizer.steps, {std::int64_t(optimizer.slots.size()), numbers}, float32, device);
    make_or_move(optimizer.state, {std::int64_t(sizeof(StepState) / sizeof(float))}, float32, device);
}

namespace {

GradientList plan_own_update(OptimizerImpl& optimizer, bool conditional, PendingFactors scaling) {
    if (optimizer.user != nullptr) scaling = PendingFactors::apply;  // it reads the gradients as tensors
    GradientList list = gradient_list(optimizer.type, optimizer.params(), scaling);
    if (list.with_gradient == 0) return list;
    prepare_state(optimizer);
    std::size_t at = 0;
    for (std::size_t g = 0; g < optimizer.groups.size(); ++g) {
        const Group& group = optimizer.groups[g];
        for (; at < list.refs.size() && list.indices[at] < group.first + group.count; ++at)
            list.refs[at].group = static_cast<std::uint32_t>(g);
    }
    make_owned(optimizer, list, conditional);
    std::size_t group = optimizer.groups.size();
    unsigned used = 0;
    for (std::size_t i = 0; i < list.refs.size(); ++i) {  // in the order of the groups
        if (list.refs[i].group != group) {
            group = list.refs[i].group;
            used = used_state(optimizer, optimizer.groups[group]);
        }
        fill_ref(optimizer, used, list.indices[i], conditional, list.refs[i]);
    }
    return list;
}

void update_parameters(OptimizerImpl& optimizer, const GradientList& plan, bool conditional,
                       const GradientScale& scale) {
    StepState* const state = optimizer.step_state();
    std::vector<StepArgs> groups;
    for (const ParamRef& ref : plan.refs)  // in the order of the groups
        while (groups.size() <= ref.group) groups.push_back(update_args(optimizer, groups.size()));
    const std::vector<ParamRef> parts =
        optimizer.sharing ? own_parts(optimizer, plan) : std::vector<ParamRef>{};
    kernels_of(optimizer.device())
        .update(optimizer.sharing ? parts : plan.refs, groups, scale,
                conditional ? &state->found_inf : nullptr, state);
    if (optimizer.sharing) complete_update(optimizer, plan);
}

}  // namespace

// The ranks of a sharded optimizer agree when each of them has all that its update needs.
GradientList plan_update(OptimizerImpl& optimizer, bool conditional, PendingFactors scaling) {
    refuse_in_update("step", optimizer);
    if (!optimizer.sharing) return plan_own_update(optimizer, conditional, scaling);
    refuse_in_capture("Optimizer.step", "exchange parts of a sharded optimizer's parameters");
    GradientList list;
    std::exception_ptr error;
    try {
        list = plan_own_update(optimizer, conditional, scaling);
    } catch (...) {
        error = std::current_exception();
    }
    optimizer.sharing->begin_update(optimizer, list.indices, error);
    return list;
}

void refuse_scale_parts(const char* op, const OptimizerImpl& optimizer, ScaleParts parts,
                        const char* advice) {
    for (std::size_t i = 0; i < optimizer.slots.size(); ++i) {
        GradientSlot& gradient = optimizer.slots[i].param->grads().gradient;
        if (!gradient.has_scale_parts(parts)) continue;
        const ScaleParts held = gradient.scale_parts();
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
                const GradientScale& scale) {
    if (plan.with_gradient == 0) return false;
    try {
        if (optimizer.user != nullptr)
            run_user_update(optimizer, plan, conditional, scale);
        else
            update_parameters(optimizer, plan, conditional, scale);
    } catch (...) {
        if (optimizer.sharing) optimizer.sharing->give_up();
        throw;
    }
    note_update(optimizer, plan.indices, conditional);
    follow_replays(optimizer, plan, conditional);
    return true;
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
    const std::vector<float> values = optimizer.state.to_vector<float>();
    optimizer.applied = std::int64_t(values[offsetof(StepState, applied) / sizeof(float)]);
    optimizer.skipped = std::int64_t(values[offsetof(StepState, skipped) / sizeof(float)]);
    optimizer.counts_on_device = false;
}

Optimizer::~Optimizer() {
    if (drop_reference(impl_->refs)) dispose(impl_);
}

void Optimizer::step() {
    const insight::RecordFunction scope("Optimizer.step");
    if (impl_->skip_next) {
        impl_->skip_next = false;
        zero_grad();
        prepare_state(*impl_);
        // The device's counter has to include a skip that the host decided.
        const std::int64_t at = offsetof(StepState, skipped) / sizeof(float);
        impl_->state.slice(0, at, at + 1).add_(ones({1}, {.device = impl_->device()}));
        if (!impl_->counts_on_device) ++impl_->skipped;
        return;
    }
    refuse_scale_parts("Optimizer.step", *impl_, both_parts,
                       "call zero_grad() before the first backward() of an iteration");
    const GradientList plan = plan_update(*impl_, false, PendingFactors::keep);
    run_update(*impl_, plan, false, plan.pending_factor ? plan.pending_factor->scale() : GradientScale{});
}

void Optimizer::zero_grad(bool set_to_none) {
    NoGrad plain;
    for (const Slot& slot : impl_->slots) {
        if (set_to_none) {
            slot.param.set_grad({});
        } else {
            if (const Tensor gradient = slot.param->grads().gradient.overwrite(); gradient.defined())
                gradient.zero_();
        }
    }
}

const char* Optimizer::type_name() const { return impl_->type; }
std::string Optimizer::to_string() const {
    const std::vector<Group>& groups = impl_->groups;
    std::string text = impl_->type + std::string("(");
    if (groups.size() == 1) return text + text_of(*impl_->kind, groups[0].options) + ")";
    for (std::size_t g = 0; g < groups.size(); ++g)
        text += fmt::format("\n  ({}): params={}, {}", g, groups[g].count,
                            text_of(*impl_->kind, groups[g].options));
    return text + "\n)";
}
std::ostream& operator<<(std::ostream& out, const Optimizer& optimizer) {
    return out << optimizer.to_string();
}
Tensors Optimizer::parameters() const { return impl_->params(); }
std::uint64_t Optimizer::id() const { return impl_->id; }

std::int64_t Optimizer::applied_steps() const {
    read_counts(*impl_);
    return impl_->applied;
}

std::int64_t Optimizer::skipped_steps() const {
    read_counts(*impl_);
    return impl_->skipped;
}

std::size_t Optimizer::group_count() const { return impl_->groups.size(); }

double Optimizer::lr(std::size_t group) const {
    check(group < impl_->groups.size(), ErrorKind::value, impl_->type, ".lr: no group ", group,
          ", there are ", impl_->groups.size());
    return impl_->groups[group].lr();
}

void Optimizer::set_lr(double lr, std::size_t group) {
    check(group < impl_->groups.size(), ErrorKind::value, impl_->type, ".set_lr: no group ", group,
          ", there are ", impl_->groups.size());
    check_rate(impl_->type + std::string(".set_lr"), lr);
    refuse_new_rate(*impl_);
    impl_->groups[group].lr() = impl_->groups[group].initial_lr = lr;
}

void Optimizer::set_lr(double lr) {
    check_rate(impl_->type + std::string(".set_lr"), lr);
    for (std::size_t g = 0; g < impl_->groups.size(); ++g) set_lr(lr, g);
}

namespace {

std::size_t option_place(const OptimizerImpl& optimizer, const char* op, const std::string& name,
                         std::size_t group) {
    check(group < optimizer.groups.size(), ErrorKind::value, optimizer.type, op, ": no group ", group,
          ", there are ", optimizer.groups.size());
    const int at = optimizer.kind->find(name);
    if (at >= 0) return std::size_t(at);
    std::string known;
    for (const OptionInfo& info : optimizer.kind->options) known += (known.empty() ? "" : ", ") + info.name;
    fail(ErrorKind::value, optimizer.type, op, ": no option '", name, "'; there are ", known);
}

}  // namespace

double Optimizer::option(const std::string& name, std::size_t group) const {
    const std::size_t at = option_place(*impl_, ".option", name, group);
    return impl_->groups[group].options[at];
}

void Optimizer::set_option(const std::string& name, double value, std::size_t group) {
    const std::size_t at = option_place(*impl_, ".set_option", name, group);
    if (at == 0) return set_lr(value, group);
    refuse_in_capture((impl_->type + std::string(".set_option")).c_str(), "change an option");
    std::vector<double> options = impl_->groups[group].options;
    options[at] = value;
    check_options(impl_->type + std::string(".set_option"), *impl_->kind, options);
    impl_->groups[group].options = std::move(options);
}

void Optimizer::use_master_weights() {
    refuse_in_update("use_master_weights", *impl_);
    impl_->masters = true;
    std::vector<std::size_t> all(impl_->slots.size());
    std::iota(all.begin(), all.end(), std::size_t(0));
    make_masters(*impl_, all, impl_->device());
    for (Slot& slot : impl_->slots)
        if (has_master(*impl_, slot)) refresh_master(slot);
}

Tensors Optimizer::master_parameters() const {
    Tensors result;
    for (const Slot& slot : impl_->slots) {
        if (!has_master(*impl_, slot)) {
            result.push_back(slot.param);
            continue;
        }
        check(!slot.part, ErrorKind::state, impl_->type,
              ".master_parameters: this rank has a part of each master only, see distributed::shard(); "
              "parameters() have the whole gradients");
        const Tensor gradient = slot.param.grad();
        slot.master.set_requires_grad(true);
        slot.master.set_grad(gradient.defined() && gradient.dtype() == float32 ? gradient : Tensor());
        result.push_back(slot.master);
    }
    return result;
}

}  // namespace mezzo::optim
