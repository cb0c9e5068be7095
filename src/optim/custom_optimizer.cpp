// Optimizers written in ops: their types and their step.
#include "mezzo/custom_optimizer.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "core/step_recorder.h"
#include "mezzo/autocast.h"
#include "mezzo/ops.h"
#include "optim/optimizer.h"

namespace mezzo::optim {

namespace {

// Names that state_dict() uses itself.
bool reserved(const std::string& name) { return name == "master" || name == "size" || name == "initial_lr"; }

void check_name(const std::string& type, const std::string& name, const std::vector<std::string>& before) {
    check(!name.empty() && name.find('.') == std::string::npos && !reserved(name), ErrorKind::value, type,
          ": '", name,
          "' cannot be the name of an option or a state; it must not be empty, contain '.', or "
          "be master, size or initial_lr");
    check(std::find(before.begin(), before.end(), name) == before.end(), ErrorKind::value, type,
          ": the name ", name, " occurs twice");
}

OptionInfo& option_of(OptimizerType& kind, const std::string& name) {
    const int at = kind.find(name);
    check(at >= 0, ErrorKind::value, kind.type, ": a range is given for '", name,
          "', which is no option; name it in CustomType::options");
    return kind.options[std::size_t(at)];
}

void set_ranges(OptimizerType& kind, const CustomType& type) {
    for (const std::string& name : type.not_negative) option_of(kind, name).rule = Rule::not_negative;
    for (const std::string& name : type.below_one) option_of(kind, name).rule = Rule::below_one;
    for (const std::string& name : type.flags) option_of(kind, name).flag = true;
}

std::shared_ptr<OptimizerType> make_kind(const CustomType& type) {
    check(!type.name.empty(), ErrorKind::value, "CustomOptimizer: the type has no name");
    auto kind = std::make_shared<OptimizerType>();
    kind->type = type.name;
    kind->code = type_code(type.name);
    kind->numbers = {"steps"};
    kind->options.push_back({.name = "lr", .rule = Rule::not_negative});
    std::vector<std::string> names;
    for (const auto& [name, value] : type.options) {
        check_name(type.name, name, names);
        names.push_back(name);
        if (name != "lr") kind->options.push_back({.name = name, .flag = name == "maximize"});
    }
    check(std::find(names.begin(), names.end(), "lr") != names.end(), ErrorKind::value, type.name,
          ": the options have no lr; give its default");
    set_ranges(*kind, type);
    kind->state_shape = type.state_shape;
    for (const std::string& name : type.state) {
        check_name(type.name, name, kind->state);
        kind->state.push_back(name);
    }
    return kind;
}

void set(const OptimizerType& kind, const NamedOptions& options, std::vector<double>& values) {
    for (const auto& [name, value] : options) {
        const int at = kind.find(name);
        check(at >= 0, ErrorKind::value, kind.type, ": no option '", name,
              "'; name it in CustomType::options");
        values[std::size_t(at)] = value;
    }
}

OptimizerImpl* make(const CustomType& type, const std::vector<CustomGroup>& groups) {
    const std::shared_ptr<const OptimizerType> kind = make_kind(type);
    std::unique_ptr<OptimizerImpl> optimizer = make_optimizer(kind);
    for (const CustomGroup& group : groups) {
        std::vector<double> values(kind->options.size());
        set(*kind, type.options, values);
        set(*kind, group.options, values);
        add_group(*optimizer, group.params, group.named_params, values);
    }
    check(!optimizer->slots.empty(), ErrorKind::value, type.name, ": the ", groups.size(),
          " groups hold no parameter");
    return optimizer.release();
}

}  // namespace

CustomOptimizer::CustomOptimizer(OptimizerImpl* impl) : Optimizer(impl) { impl->user = this; }
CustomOptimizer::CustomOptimizer(const CustomType& type, const std::vector<CustomGroup>& groups)
    : CustomOptimizer(make(type, groups)) {}

namespace {

std::shared_ptr<const OptimizerType> kind_of(const OptimizerTable& table) {
    auto kind = std::make_shared<OptimizerType>();
    kind->type = table.type;
    kind->code = type_code(table.type);
    kind->numbers = {"steps"};
    for (const OptionField& field : table.options) {
        const bool not_negative = field.low == 0 && std::isinf(field.high);
        kind->options.push_back(
            {.name = field.name,
             .rule = field.below_high ? Rule::below_one
                     : not_negative   ? Rule::not_negative
                                      : Rule::finite,
             .flag = field.type == OptionField::Type::flag,
             .whole = field.type == OptionField::Type::integer || field.type == OptionField::Type::enumerator,
             .low = field.low,
             .high = field.high});
    }
    for (const char* const name : table.state) kind->state.emplace_back(name);
    if (table.state_shape != nullptr) kind->state_shape = table.state_shape;
    return kind;
}

double value_of(const OptionField& field, const void* options) {
    const void* const at = static_cast<const char*>(options) + field.offset;
    switch (field.type) {
        case OptionField::Type::flag:
            return *static_cast<const bool*>(at) ? 1 : 0;
        case OptionField::Type::integer:
            return double(*static_cast<const std::int64_t*>(at));
        case OptionField::Type::enumerator:
            return double(*static_cast<const std::uint8_t*>(at));
        default:
            return *static_cast<const double*>(at);
    }
}

}  // namespace

TableOptimizer::TableOptimizer(const OptimizerTable& table)
    : table_(table), optimizer_(make_optimizer(kind_of(table))) {}

void TableOptimizer::add(const Tensors& params, const void* options, const StateDict& named) {
    std::vector<double> values;
    for (const OptionField& field : table_.options) values.push_back(value_of(field, options));
    add_group(*optimizer_, params, named, values);
}

OptimizerImpl* TableOptimizer::release() {
    check(!optimizer_->slots.empty(), ErrorKind::value, table_.type, ": there is no parameter");
    return optimizer_.release();
}

struct UpdateAccess {
    static ParameterUpdate make(const OptimizerImpl& optimizer, std::size_t group) {
        ParameterUpdate update;
        update.optimizer_ = &optimizer;
        update.group_ = group;
        return update;
    }
    static Tensors& states(ParameterUpdate& update) { return update.states_; }
    static void run(CustomOptimizer& optimizer, ParameterUpdate& update) { optimizer.update(update); }
};

Tensor& ParameterUpdate::state(std::string_view name) {
    const std::vector<std::string>& names = optimizer_->kind->state;
    for (std::size_t k = 0; k < names.size(); ++k)
        if (names[k] == name) return states_[k];
    fail(ErrorKind::value, optimizer_->type, ".update: no state '", name, "'; name it in CustomType::state");
}

double ParameterUpdate::option(std::string_view name) const {
    check(name != "lr", ErrorKind::value, optimizer_->type,
          ".update: the learning rate is the tensor ParameterUpdate::lr");
    const int at = optimizer_->kind->find(name);
    check(at >= 0, ErrorKind::value, optimizer_->type, ".update: no option '", name,
          "'; name it in CustomType::options");
    return optimizer_->groups[group_].options[std::size_t(at)];
}

namespace {

// Copies of the gradients in the dtype of the state, multiplied by the scale, and negated for "maximize".
Tensors scaled_gradients(const OptimizerImpl& optimizer, const GradientList& plan,
                         const GradientFactor& scale) {
    Tensors gradients;
    std::vector<ParamRef> refs;
    const int maximize = optimizer.kind->find("maximize");
    for (std::size_t i = 0; i < plan.refs.size(); ++i) {
        const Slot& slot = optimizer.slots[plan.indices[i]];
        const Tensor gradient = slot.param.grad().detach();
        const Dtype dtype = state_dtype(slot);
        gradients.push_back(gradient.dtype() == dtype ? gradient.clone() : gradient.to(dtype));
        refs.push_back({.param = nullptr,
                        .grad = raw(gradients.back()),
                        .state = {},
                        .copy16 = nullptr,
                        .numel = gradient.numel(),
                        .dtype = dtype,
                        .grad_dtype = dtype,
                        .copy16_dtype = dtype,
                        .step = nullptr});
    }
    if (!refs.empty() && (scale.state != nullptr || scale.clip))
        kernels_of(plan.device).scale_gradients(refs, scale);
    if (maximize >= 0)
        for (std::size_t i = 0; i < refs.size(); ++i)
            if (optimizer.groups[plan.refs[i].group].options[std::size_t(maximize)] != 0)
                gradients[i].mul_(-1.0);
    return gradients;
}

// The learning rate as a tensor. In a capture it is cloned, because a captured run must make the same
// allocations as the runs before it.
Tensor rate_tensor(OptimizerImpl& optimizer, std::size_t group, Device device) {
    if (StepRecorder* graph = thread_state.recorder)
        return graph
            ->number_tensor([own = Ref<OptimizerImpl>(&optimizer), group] { return own->groups[group].lr(); })
            .clone();
    return full({}, optimizer.groups[group].lr(), {.dtype = float64, .device = device});
}

// The tensor that is updated: the master, or the parameter itself.
Tensor target_of(const OptimizerImpl& optimizer, const Slot& slot) {
    return has_master(optimizer, slot) ? slot.master.detach() : slot.param.detach();
}

std::vector<ParameterUpdate> compute(OptimizerImpl& optimizer, const GradientList& plan,
                                     const GradientFactor& scale) {
    const Tensors gradients = scaled_gradients(optimizer, plan, scale);
    const Tensor numbers = optimizer.steps.select(1, 0).to(float64) + 1.0;
    std::vector<Tensor> rates(optimizer.groups.size());
    std::vector<ParameterUpdate> updates;
    for (std::size_t i = 0; i < plan.refs.size(); ++i) {
        const Slot& slot = optimizer.slots[plan.indices[i]];
        const std::size_t group = plan.refs[i].group;
        if (!rates[group].defined()) rates[group] = rate_tensor(optimizer, group, plan.device);
        ParameterUpdate update = UpdateAccess::make(optimizer, group);
        const Tensor target = target_of(optimizer, slot);
        const Dtype dtype = state_dtype(slot);
        update.value = target.dtype() == dtype ? target.clone() : target.to(dtype);
        update.grad = gradients[i];
        update.lr = rates[group].clone();
        update.step = numbers.select(0, std::int64_t(plan.indices[i])).clone();
        for (const Tensor& state : slot.state) UpdateAccess::states(update).push_back(state.clone());
        UpdateAccess::run(*optimizer.user, update);
        updates.push_back(std::move(update));
    }
    return updates;
}

void check_result(const OptimizerImpl& optimizer, std::size_t slot, const std::string& what,
                  const Shape& shape, const Tensor& result) {
    const std::string where =
        optimizer.type + std::string(".update: the new ") + what + " of " + optimizer.describe(slot);
    check(result.defined(), ErrorKind::value, where, " is undefined");
    check(result.shape() == shape, ErrorKind::shape, where, " has shape ", result.shape(), ", not ", shape);
    check(is_floating(result.dtype()), ErrorKind::dtype, where, " is ", result.dtype(),
          "; a floating dtype is needed");
    check(result.device() == optimizer.device(), ErrorKind::device, where, " is on ", result.device());
}

void check_results(const OptimizerImpl& optimizer, const GradientList& plan,
                   std::vector<ParameterUpdate>& updates) {
    for (std::size_t i = 0; i < updates.size(); ++i) {
        const Slot& slot = optimizer.slots[plan.indices[i]];
        check_result(optimizer, plan.indices[i], "value", slot.param.shape(), updates[i].value);
        const Tensors& states = UpdateAccess::states(updates[i]);
        for (std::size_t k = 0; k < states.size(); ++k)
            check_result(optimizer, plan.indices[i], optimizer.kind->state[k], slot.state[k].shape(),
                         states[k]);
    }
}

// A result and its target.
struct Write {
    Tensor target, result;
};

// The result in the target's dtype; the target's own values if the step is skipped.
Write write_of(const Tensor& target, const Tensor& result, const Tensor& skipped) {
    const Tensor same = result.to(target.dtype());
    return {target, skipped.defined() ? where(skipped, target, same) : same};
}

// Adds 1 to the counts of updates, or, if the step is skipped, to the count of skipped steps.
void count(OptimizerImpl& optimizer, const GradientList& plan, const Tensor& skipped, const Tensor& applied) {
    const Tensor steps = optimizer.steps.select(1, 0);
    if (plan.indices.size() == optimizer.slots.size())
        steps.add_(applied);
    else
        for (const std::size_t index : plan.indices) steps.select(0, std::int64_t(index)).add_(applied);
    const auto counter = [&](std::size_t offset) {
        return optimizer.state.select(0, std::int64_t(offset / sizeof(float)));
    };
    counter(offsetof(StepState, applied)).add_(applied);
    if (skipped.defined()) counter(offsetof(StepState, skipped)).add_(1.0 - applied);
}

// Marks an optimizer while its update() runs.
class Updating {
public:
    explicit Updating(bool& on) : on_(on) { on_ = true; }
    ~Updating() { on_ = false; }
    Updating(const Updating&) = delete;
    Updating& operator=(const Updating&) = delete;

private:
    bool& on_;
};

}  // namespace

void run_user_update(OptimizerImpl& optimizer, const GradientList& plan, bool conditional,
                     const GradientFactor& scale) {
    NoGrad plain;
    const amp::Autocast off({.enabled = false});
    std::vector<ParameterUpdate> updates;
    {
        const Updating here(optimizer.updating);
        updates = compute(optimizer, plan, scale);
    }
    check_results(optimizer, plan, updates);
    Tensor skipped, applied = ones({}, {.device = plan.device});
    if (conditional) {
        const Tensor found_inf = optimizer.state.select(0, offsetof(StepState, found_inf) / sizeof(float));
        skipped = ne(found_inf, 0.0);
        applied = 1.0 - found_inf;
    }
    // All memory is allocated before the first parameter changes.
    std::vector<Write> writes;
    for (std::size_t i = 0; i < updates.size(); ++i) {
        const Slot& slot = optimizer.slots[plan.indices[i]];
        const Tensor target = target_of(optimizer, slot);
        writes.push_back(write_of(target, updates[i].value, skipped));
        const Tensor value = writes.back().result;
        if (has_master(optimizer, slot))
            writes.push_back({slot.param.detach(), value});
        else if (const Copy16& copy16 = slot.param->grads().copy16; is_16bit(copy16.wanted))
            writes.push_back({copy16.value, value});  // it has no other reference since plan_update()
        const Tensors& states = UpdateAccess::states(updates[i]);
        for (std::size_t k = 0; k < states.size(); ++k)
            writes.push_back(write_of(slot.state[k], states[k], skipped));
    }
    for (const Write& write : writes) write.target.copy_(write.result);
    count(optimizer, plan, skipped, applied);
}

}  // namespace mezzo::optim
