// Registration of optimizers written in ops, and LAMB.
#include "mezzo/custom_optimizer.h"

#include <algorithm>
#include <cmath>

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

void set_rule(Kind& kind, const std::vector<std::string>& names, Rule rule) {
    for (const std::string& name : names) {
        const int at = kind.find(name);
        check(at >= 0, ErrorKind::value, kind.type, ": a range is given for '", name,
              "', which is no option; name it in CustomType::options");
        kind.options[std::size_t(at)].rule = rule;
    }
}

std::shared_ptr<Kind> make_kind(const CustomType& type) {
    check(!type.name.empty(), ErrorKind::value, "CustomOptimizer: the type has no name");
    auto kind = std::make_shared<Kind>();
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
    set_rule(*kind, type.not_negative, Rule::not_negative);
    set_rule(*kind, type.below_one, Rule::below_one);
    for (const std::string& name : type.state) {
        check_name(type.name, name, kind->state);
        kind->state.push_back(name);
    }
    return kind;
}

void set(const Kind& kind, const NamedOptions& options, std::vector<double>& values) {
    for (const auto& [name, value] : options) {
        const int at = kind.find(name);
        check(at >= 0, ErrorKind::value, kind.type, ": no option '", name,
              "'; name it in CustomType::options");
        values[std::size_t(at)] = value;
    }
}

OptimizerImpl* make(const CustomType& type, const std::vector<CustomGroup>& groups) {
    const std::shared_ptr<const Kind> kind = make_kind(type);
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

NamedOptions named(const LAMBOptions& o) {
    return {{"lr", o.lr},   {"weight_decay", o.weight_decay}, {"beta1", o.beta1}, {"beta2", o.beta2},
            {"eps", o.eps}, {"maximize", o.maximize ? 1 : 0}};
}

std::vector<CustomGroup> custom(const std::vector<LAMBGroup>& groups) {
    std::vector<CustomGroup> result;
    result.reserve(groups.size());
    for (const LAMBGroup& group : groups)
        result.push_back({group.params, named(group.options), group.named_params});
    return result;
}

}  // namespace

CustomOptimizer::CustomOptimizer(const CustomType& type, const std::vector<CustomGroup>& groups)
    : Optimizer(make(type, groups)) {
    impl().user = this;
}

LAMB::LAMB(const Tensors& params, const LAMBOptions& options)
    : LAMB(std::vector<LAMBGroup>{{params, options, {}}}) {}
LAMB::LAMB(const StateDict& named_params, const LAMBOptions& options)
    : LAMB(std::vector<LAMBGroup>{{{}, options, named_params}}) {}
LAMB::LAMB(const std::vector<LAMBGroup>& groups)
    : CustomOptimizer({.name = "LAMB",
                       .options = named(LAMBOptions()),
                       .state = {"exp_avg", "exp_avg_sq"},
                       .not_negative = {"eps", "weight_decay"},
                       .below_one = {"beta1", "beta2"}},
                      custom(groups)) {}

void LAMB::update(ParameterUpdate& p) {
    const double beta1 = p.option("beta1"), beta2 = p.option("beta2");
    Tensor &m = p.state("exp_avg"), &v = p.state("exp_avg_sq");
    m = beta1 * m + (1 - beta1) * p.grad;
    v = beta2 * v + (1 - beta2) * square(p.grad);
    const Tensor correction1 = 1.0 - exp(p.step * std::log(beta1));
    const Tensor correction2 = 1.0 - exp(p.step * std::log(beta2));
    const Tensor direction =
        m / correction1 / (sqrt(v / correction2) + p.option("eps")) + p.option("weight_decay") * p.value;
    const Tensor size = norm(p.value), length = norm(direction);
    const Tensor both = logical_and(gt(size, 0.0), gt(length, 0.0));
    const Tensor ratio = where(both, size / length, ones_like(size));
    p.value = p.value - p.lr * ratio * direction;
}

}  // namespace mezzo::optim
