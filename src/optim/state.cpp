// state_dict() and load_state_dict() of optimizers: everything as tensors, so that any tensor file can hold
// it.
#include <cstddef>

#include "optim/optimizer.h"

namespace mezzo::optim {

namespace {

struct Option {
    const char* name;
    double StepArgs::*value;
};
constexpr Option options[] = {{"lr", &StepArgs::lr},
                              {"weight_decay", &StepArgs::weight_decay},
                              {"momentum", &StepArgs::momentum},
                              {"dampening", &StepArgs::dampening},
                              {"beta1", &StepArgs::beta1},
                              {"beta2", &StepArgs::beta2},
                              {"eps", &StepArgs::eps}};
struct Flag {
    const char* name;
    bool StepArgs::*value;
};
constexpr Flag flags[] = {{"nesterov", &StepArgs::nesterov}, {"maximize", &StepArgs::maximize}};

Tensor number(double value) { return scalar(value, {.dtype = float64}); }

std::string group_key(std::size_t group, const char* name) {
    return "groups." + std::to_string(group) + "." + name;
}
std::string slot_key(std::size_t slot, const char* name) {
    return "state." + std::to_string(slot) + "." + name;
}

const char* moment_name(Algorithm algorithm, int moment) {
    if (algorithm == Algorithm::sgd) return "momentum_buffer";
    return moment == 0 ? "exp_avg" : "exp_avg_sq";
}

const Tensor* find(const StateDict& state, const std::string& key) {
    for (const auto& [name, value] : state)
        if (name == key && value.defined()) return &value;
    return nullptr;
}

// Reads a state for one optimizer; throws before anything is changed.
class Reader {
public:
    Reader(const OptimizerImpl& optimizer, const StateDict& state) : optimizer_(optimizer), state_(state) {}

    double number(const std::string& key) const {
        const Tensor* const value = find(state_, key);
        check(value != nullptr, ErrorKind::value, optimizer_.type, ".load_state_dict: ", key,
              " is missing from ", state_.size(), " entries");
        check(value->numel() == 1, ErrorKind::shape, optimizer_.type, ".load_state_dict: ", key,
              " has shape ", value->shape(), ", one number is needed");
        return value->item<double>();
    }
    // A copy on the parameter's device; undefined when there is none.
    Tensor companion(std::size_t slot, const char* name) const {
        const std::string key = slot_key(slot, name);
        const Tensor* const value = find(state_, key);
        if (!value) return {};
        const Tensor& param = optimizer_.slots[slot].param;
        check(value->shape() == param.shape(), ErrorKind::shape, optimizer_.type, ".load_state_dict: ", key,
              " has shape ", value->shape(), ", the parameter ", param.shape());
        return value->detach().clone().to(param.device());
    }

private:
    const OptimizerImpl& optimizer_;
    const StateDict& state_;
};

std::vector<Group> read_groups(const OptimizerImpl& optimizer, const Reader& reader) {
    std::vector<Group> groups = optimizer.groups;
    for (std::size_t g = 0; g < groups.size(); ++g) {
        const auto size = std::size_t(reader.number(group_key(g, "size")));
        check(size == groups[g].count, ErrorKind::value, optimizer.type, ".load_state_dict: group ", g,
              " has ", size, " parameters there and ", groups[g].count, " here");
        for (const Option& o : options) groups[g].args.*o.value = reader.number(group_key(g, o.name));
        for (const Flag& f : flags) groups[g].args.*f.value = reader.number(group_key(g, f.name)) != 0;
        groups[g].initial_lr = reader.number(group_key(g, "initial_lr"));
    }
    return groups;
}

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
            if (slot.master.defined())
                state.emplace_back(slot_key(i, "master"), slot.master.detach().clone());
        }
    return state;
}

void Optimizer::load_state_dict(const StateDict& state) {
    NoGrad plain;
    OptimizerImpl& own = *impl_;
    const Reader reader(own, state);
    const Algorithm algorithm = own.groups.front().args.algorithm;
    check(reader.number("algorithm") == double(algorithm), ErrorKind::value, own.type,
          ".load_state_dict: the state is that of another type of optimizer");
    check(reader.number("groups") == double(own.groups.size()), ErrorKind::value, own.type,
          ".load_state_dict: the state has ", reader.number("groups"), " groups, this optimizer ",
          own.groups.size());
    std::vector<Group> groups = read_groups(own, reader);
    const double applied = reader.number("applied_steps"), skipped = reader.number("skipped_steps");
    Tensor steps;
    if (const Tensor* const value = find(state, "steps")) {
        check(value->numel() == std::int64_t(own.slots.size()), ErrorKind::shape, own.type,
              ".load_state_dict: steps has shape ", value->shape(), " for ", own.slots.size(), " parameters");
        steps = value->clone().to(own.device()).to(float32);
    }
    std::vector<Slot> slots = own.slots;
    for (std::size_t i = 0; i < slots.size(); ++i) {
        for (int m = 0; m < (algorithm == Algorithm::sgd ? 1 : 2); ++m)
            slots[i].moments[m] = reader.companion(i, moment_name(algorithm, m));
        slots[i].master = reader.companion(i, "master");
    }

    own.groups = std::move(groups);
    own.slots = std::move(slots);
    own.steps = steps;
    own.state = Tensor();
    prepare_state(own);
    StepState counts{};
    counts.grad_multiplier = 1;
    counts.applied = float(applied);
    counts.skipped = float(skipped);
    const std::span<const float> values(reinterpret_cast<const float*>(&counts),
                                        sizeof counts / sizeof(float));
    own.state.copy_(Tensor::from<float>(values, own.state.shape()).to(own.device()));
    own.applied = std::int64_t(applied);
    own.skipped = std::int64_t(skipped);
    own.counts_on_device = false;
    // A master that rounds to the parameter's value is the parameter's master: refresh_master() looks at the
    // next step.
    for (Slot& slot : own.slots) slot.master_version = ~std::uint64_t(0);
}

}  // namespace mezzo::optim
