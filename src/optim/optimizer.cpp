// The base of the optimizers: groups, options, learning rates.
#include "optim/optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <ostream>
#include <unordered_map>

#include "core/gradient/unlisted.h"
#include "core/step_recorder.h"
#include "mezzo/ops.h"

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

std::unique_ptr<OptimizerImpl> make_optimizer(const std::shared_ptr<const OptimizerType>& kind) {
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
    check(!is_quantized(param), ErrorKind::dtype, optimizer.type, ": parameter ", index,
          " is an 8-bit weight of quantize_weights(), which is for inference; train the module before");
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
    slot.group = optimizer.groups.size();
    slot.state.resize(optimizer.kind->state.size());
    optimizer.slots.push_back(std::move(slot));
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

Optimizer::~Optimizer() {
    if (drop_reference(impl_->refs)) dispose(impl_);
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

// Counts steps from the next one on for parameters without the state that their options need now.
void count_from_state(OptimizerImpl& optimizer, const Group& group, unsigned used_before) {
    if (!optimizer.kind->counts_from_state || !optimizer.steps.defined()) return;
    if (used_before != 0 || used_state(optimizer, group) == 0) return;
    for (std::size_t i = group.first; i < group.first + group.count; ++i)
        if (!optimizer.slots[i].state[0].defined()) optimizer.steps.select(0, std::int64_t(i)).zero_();
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
    Group& changed = impl_->groups[group];
    const unsigned used_before = used_state(*impl_, changed);
    changed.options = std::move(options);
    count_from_state(*impl_, changed, used_before);
}

}  // namespace mezzo::optim
