// Optimizers written in ops: their options and their updates.
#include "mezzo/optim_in_ops.h"

#include <algorithm>
#include <cmath>

#include "core/enumerators.h"
#include "mezzo/ops.h"
#include "mezzo/product_ops.h"
#include "optim/optimizer.h"

namespace mezzo::optim {

namespace {

// Options of a type of optimizer by name, with their rules.
struct OptionList {
    const char* type;
    NamedOptions values = {};
    std::vector<std::string> not_negative = {}, below_one = {}, flags = {};

    void any(const char* name, double value) { values.emplace_back(name, value); }
    void size(const char* name, double value) {
        any(name, value);
        not_negative.emplace_back(name);
    }
    void share(const char* name, double value) {
        any(name, value);
        below_one.emplace_back(name);
    }
    void flag(const char* name, bool value) {
        any(name, value ? 1 : 0);
        flags.emplace_back(name);
    }
    void require(bool holds, const char* name, double value, const char* rule) const {
        check(holds, ErrorKind::value, type, ": ", name, " is ", value, "; it must be ", rule);
    }
};

template <class Options> void list_adam(OptionList& list, const Options& o) {
    list.size("lr", o.lr);
    list.size("weight_decay", o.weight_decay);
    list.share("beta1", o.beta1);
    list.share("beta2", o.beta2);
    list.size("eps", o.eps);
    list.flag("maximize", o.maximize);
}
void list_options(OptionList& list, const LAMBOptions& o) { list_adam(list, o); }
void list_options(OptionList& list, const AdamaxOptions& o) { list_adam(list, o); }
void list_options(OptionList& list, const RAdamOptions& o) {
    list_adam(list, o);
    list.flag("decoupled_weight_decay", o.decoupled_weight_decay);
}
void list_options(OptionList& list, const AdadeltaOptions& o) {
    list.size("lr", o.lr);
    list.size("weight_decay", o.weight_decay);
    list.share("rho", o.rho);
    list.size("eps", o.eps);
    list.flag("maximize", o.maximize);
}
void list_options(OptionList& list, const ASGDOptions& o) {
    list.size("lr", o.lr);
    list.size("weight_decay", o.weight_decay);
    list.size("lambd", o.lambd);
    list.size("alpha", o.alpha);
    list.size("t0", o.t0);
    list.flag("maximize", o.maximize);
}
void list_options(OptionList& list, const RpropOptions& o) {
    list.size("lr", o.lr);
    list.share("eta_minus", o.eta_minus);
    list.size("eta_plus", o.eta_plus);
    list.require(o.eta_plus > 1, "eta_plus", o.eta_plus, "above 1");
    list.size("step_size_min", o.step_size_min);
    list.size("step_size_max", o.step_size_max);
    list.require(o.step_size_min <= o.step_size_max, "step_size_min", o.step_size_min,
                 "at most step_size_max");
    list.flag("maximize", o.maximize);
}
void list_options(OptionList& list, const AdafactorOptions& o) {
    list.size("lr", o.lr);
    list.size("weight_decay", o.weight_decay);
    list.any("beta2_decay", o.beta2_decay);
    list.require(o.beta2_decay <= 0, "beta2_decay", o.beta2_decay, "<= 0");
    list.size("eps1", o.eps1);
    list.size("eps2", o.eps2);
    list.any("d", o.d);
    list.require(o.d >= 1, "d", o.d, ">= 1");
    list.flag("maximize", o.maximize);
}
void list_options(OptionList& list, const MuonOptions& o) {
    list.size("lr", o.lr);
    list.size("weight_decay", o.weight_decay);
    list.size("momentum", o.momentum);
    list.flag("nesterov", o.nesterov);
    list.any("ns_a", o.ns_coefficients[0]);
    list.any("ns_b", o.ns_coefficients[1]);
    list.any("ns_c", o.ns_coefficients[2]);
    list.size("eps", o.eps);
    list.size("ns_steps", double(o.ns_steps));
    list.require(o.ns_steps < 100, "ns_steps", double(o.ns_steps), "below 100");
    check_enumerator(list.type, "adjust_lr_fn", o.adjust_lr_fn, MuonAdjustLr::spectral_unclamped);
    list.size("adjust_lr_fn", double(int(o.adjust_lr_fn)));
}

template <class Options> OptionList listed(const char* type, const Options& options) {
    OptionList list{.type = type};
    list_options(list, options);
    return list;
}

CustomType custom_type(OptionList list, std::vector<std::string> state) {
    return {.name = list.type,
            .options = std::move(list.values),
            .state = std::move(state),
            .not_negative = std::move(list.not_negative),
            .below_one = std::move(list.below_one),
            .flags = std::move(list.flags)};
}

template <class Group>
std::vector<CustomGroup> custom_groups(const char* type, const std::vector<Group>& groups) {
    std::vector<CustomGroup> result;
    result.reserve(groups.size());
    for (const Group& group : groups)
        result.push_back({group.params, listed(type, group.options).values, group.named_params});
    return result;
}

void check_matrix(const Tensor& parameter, const std::string& name) {
    check(!parameter.defined() || parameter.dim() == 2, ErrorKind::shape, "Muon: ", name, " has shape ",
          parameter.defined() ? parameter.shape() : Shape(),
          "; it updates matrices; give this parameter to AdamW");
}
std::vector<CustomGroup> matrix_groups(std::vector<CustomGroup> groups) {
    std::size_t index = 0;
    for (const CustomGroup& group : groups) {
        for (const Tensor& parameter : group.params)
            check_matrix(parameter, "parameter " + std::to_string(index++));
        for (const auto& [name, parameter] : group.named_params)
            check_matrix(parameter, name + " (parameter " + std::to_string(index++) + ")");
    }
    return groups;
}

// The factors of a parameter of two or more dimensions, the means over its last and second to last one; of
// other parameters the variance itself. The others are empty.
Shape adafactor_state(const std::string& state, const Shape& parameter) {
    const int dims = parameter.size();
    if ((dims > 1) == (state == "variance")) return {0};
    Shape shape = parameter;
    if (dims > 1) shape[state == "row_var" ? dims - 1 : dims - 2] = 1;
    return shape;
}
CustomType adafactor_type() {
    CustomType type =
        custom_type(listed("Adafactor", AdafactorOptions()), {"row_var", "col_var", "variance"});
    type.state_shape = adafactor_state;
    return type;
}

CustomType asgd_type() {
    CustomType type = custom_type(listed("ASGD", ASGDOptions()), {"ax", "eta"});
    type.state_shape = [](const std::string& state, const Shape& parameter) {
        return state == "eta" ? Shape() : parameter;
    };
    return type;
}

Tensor power(double base, const Tensor& exponent) { return exp(exponent * std::log(base)); }

// The gradient with weight decay that is added to it.
Tensor decayed_gradient(const ParameterUpdate& p) {
    const double decay = p.option("weight_decay");
    return decay == 0 ? p.grad : p.grad + decay * p.value;
}

Tensor mixed(const Tensor& average, const Tensor& x, double decay) {
    return decay * average + (1 - decay) * x;
}

// The parameter after decoupled weight decay.
Tensor shrunk_value(const ParameterUpdate& p) {
    const double decay = p.option("weight_decay");
    return decay == 0 ? p.value : p.value * (1.0 - p.lr * decay);
}

Tensor root_mean_square(const Tensor& x) { return norm(x) / std::sqrt(double(x.numel())); }
Tensor at_least(const Tensor& x, double low) { return clamp(x, low, INFINITY); }

// Brings the singular values of a matrix near 1. Iterates on the orientation with the smaller Gram matrix.
Tensor orthogonal(const Tensor& u, const ParameterUpdate& p) {
    const double a = p.option("ns_a"), b = p.option("ns_b"), c = p.option("ns_c");
    const auto steps = int(p.option("ns_steps"));
    check(steps < 100, ErrorKind::value, "Muon: ns_steps is ", steps, "; it must be below 100");
    const bool tall = u.size(0) > u.size(1);
    Tensor x = (tall ? u.t() : u).to(bfloat16);
    x = x / at_least(norm(x), p.option("eps"));
    for (int i = 0; i < steps; ++i) {
        const Tensor gram = matmul(x, x.t());
        x = addmm(x, addmm(gram, gram, gram, {.beta = b, .alpha = c}), x, {.beta = a});
    }
    return (tall ? x.t() : x).to(u.dtype());
}

double muon_factor(MuonAdjustLr adjust, const Shape& shape) {
    const double rows = double(shape[0]), columns = double(shape[1]);
    switch (adjust) {
        case MuonAdjustLr::match_rms_adamw:
            return 0.2 * std::sqrt(std::max(rows, columns));
        case MuonAdjustLr::spectral_unclamped:
            return std::sqrt(rows / columns);
        default:
            return std::sqrt(std::max(1.0, rows / columns));
    }
}

}  // namespace

// The constructors of an optimizer of a CustomType, with its groups.
#define MEZZO_OPTIMIZER_IN_OPS(name, type, groups_of)                       \
    name::name(const Tensors& params, const name##Options& options)         \
        : name(std::vector<name##Group>{{params, options, {}}}) {}          \
    name::name(const StateDict& named_params, const name##Options& options) \
        : name(std::vector<name##Group>{{{}, options, named_params}}) {}    \
    name::name(const std::vector<name##Group>& groups)                      \
        : CustomOptimizer(type, groups_of(custom_groups(#name, groups))) {}
#define MEZZO_SIMPLE_OPTIMIZER(name, ...) \
    MEZZO_OPTIMIZER_IN_OPS(name, custom_type(listed(#name, name##Options()), {__VA_ARGS__}), )

MEZZO_SIMPLE_OPTIMIZER(LAMB, "exp_avg", "exp_avg_sq")
MEZZO_SIMPLE_OPTIMIZER(RAdam, "exp_avg", "exp_avg_sq")
MEZZO_SIMPLE_OPTIMIZER(Adamax, "exp_avg", "exp_inf")
MEZZO_SIMPLE_OPTIMIZER(Adadelta, "square_avg", "acc_delta")
MEZZO_SIMPLE_OPTIMIZER(Rprop, "prev", "step_size")
MEZZO_OPTIMIZER_IN_OPS(ASGD, asgd_type(), )
MEZZO_OPTIMIZER_IN_OPS(Adafactor, adafactor_type(), )
MEZZO_OPTIMIZER_IN_OPS(Muon, custom_type(listed("Muon", MuonOptions()), {"momentum_buffer"}), matrix_groups)
#undef MEZZO_OPTIMIZER_IN_OPS
#undef MEZZO_SIMPLE_OPTIMIZER

void LAMB::update(ParameterUpdate& p) {
    const double beta1 = p.option("beta1"), beta2 = p.option("beta2");
    Tensor &m = p.state("exp_avg"), &v = p.state("exp_avg_sq");
    m = mixed(m, p.grad, beta1);
    v = mixed(v, square(p.grad), beta2);
    const Tensor correction1 = 1.0 - power(beta1, p.step), correction2 = 1.0 - power(beta2, p.step);
    const Tensor direction =
        m / correction1 / (sqrt(v / correction2) + p.option("eps")) + p.option("weight_decay") * p.value;
    const Tensor size = norm(p.value), length = norm(direction);
    const Tensor both = logical_and(gt(size, 0.0), gt(length, 0.0));
    const Tensor ratio = where(both, size / length, ones_like(size));
    p.value = p.value - p.lr * ratio * direction;
}

void RAdam::update(ParameterUpdate& p) {
    const double beta1 = p.option("beta1"), beta2 = p.option("beta2");
    Tensor &m = p.state("exp_avg"), &v = p.state("exp_avg_sq");
    const bool decoupled = p.option("decoupled_weight_decay") != 0;
    const Tensor g = decoupled ? p.grad : decayed_gradient(p);
    m = mixed(m, g, beta1);
    v = mixed(v, square(g), beta2);
    const Tensor power2 = power(beta2, p.step), correction2 = 1.0 - power2;
    const double longest = 2 / (1 - beta2) - 1;
    const Tensor length = longest - 2.0 * p.step * power2 / correction2;
    const Tensor rectified = gt(length, 5.0);
    const Tensor rectification = sqrt((length - 4.0) * (length - 2.0) * longest /
                                      ((longest - 4) * (longest - 2) * length) * correction2);
    const Tensor rate = p.lr / (1.0 - power(beta1, p.step)) * where(rectified, rectification, 1.0);
    const Tensor divisor = where(rectified, sqrt(v) + p.option("eps"), 1.0);
    p.value = (decoupled ? shrunk_value(p) : p.value) - rate * (m / divisor);
}

void Adamax::update(ParameterUpdate& p) {
    const double beta1 = p.option("beta1");
    Tensor &m = p.state("exp_avg"), &u = p.state("exp_inf");
    const Tensor g = decayed_gradient(p);
    m = mixed(m, g, beta1);
    u = maximum(p.option("beta2") * u, abs(g) + p.option("eps"));
    p.value = p.value - p.lr / (1.0 - power(beta1, p.step)) * (m / u);
}

void Adadelta::update(ParameterUpdate& p) {
    const double rho = p.option("rho"), eps = p.option("eps");
    Tensor &v = p.state("square_avg"), &a = p.state("acc_delta");
    const Tensor g = decayed_gradient(p);
    v = mixed(v, square(g), rho);
    const Tensor delta = sqrt(a + eps) / sqrt(v + eps) * g;
    a = mixed(a, square(delta), rho);
    p.value = p.value - p.lr * delta;
}

void ASGD::update(ParameterUpdate& p) {
    const double lambd = p.option("lambd");
    Tensor &average = p.state("ax"), &eta = p.state("eta");
    const Tensor rate = where(eq(p.step, 1.0), p.lr, eta), g = decayed_gradient(p);
    const Tensor share = 1.0 / at_least(p.step - (1 + p.option("t0")), 1);
    p.value = p.value * (1.0 - lambd * rate) - rate * g;
    average = where(eq(share, 1.0), p.value, average + share * (p.value - average));
    eta = p.lr / pow(1.0 + lambd * p.lr * p.step, p.option("alpha"));
}

void Rprop::update(ParameterUpdate& p) {
    Tensor &previous = p.state("prev"), &size = p.state("step_size");
    const Tensor trend = previous * p.grad, turned = lt(trend, 0.0);
    size = where(eq(p.step, 1.0), p.lr, size);
    size = where(turned, size * p.option("eta_minus"), size);
    size = clamp(where(gt(trend, 0.0), size * p.option("eta_plus"), size), p.option("step_size_min"),
                 p.option("step_size_max"));
    previous = where(turned, 0.0, p.grad);
    p.value = p.value - sign(previous) * size;
}

void Adafactor::update(ParameterUpdate& p) {
    const double given = p.option("eps1");
    const double eps1 = given == 0 ? dtype_info(p.value.dtype()).epsilon : given;
    const Tensor share = pow(p.step, p.option("beta2_decay")), squares = square(p.grad);
    const Tensor rate = at_least(root_mean_square(p.value), p.option("eps2")) * minimum(p.lr, rsqrt(p.step));
    const auto follow = [&](Tensor& average, const Tensor& x) { average = average + share * (x - average); };
    Tensor v;
    if (p.grad.dim() > 1) {
        Tensor &rows = p.state("row_var"), &columns = p.state("col_var");
        follow(rows, mean(squares, {-1}, {.keepdim = true}));
        follow(columns, mean(squares, {-2}, {.keepdim = true}));
        v = rows * columns / at_least(mean(rows, {-2}, {.keepdim = true}), eps1);
    } else {
        follow(p.state("variance"), squares);
        v = p.state("variance");
    }
    const Tensor update = rsqrt(at_least(v, eps1 * eps1)) * p.grad;
    p.value = shrunk_value(p) - rate / at_least(root_mean_square(update) / p.option("d"), 1) * update;
}

void Muon::update(ParameterUpdate& p) {
    const double momentum = p.option("momentum");
    Tensor& average = p.state("momentum_buffer");
    average = mixed(average, p.grad, momentum);
    const Tensor u = p.option("nesterov") != 0 ? mixed(p.grad, average, 1 - momentum) : average;
    const double factor = muon_factor(MuonAdjustLr(int(p.option("adjust_lr_fn"))), p.value.shape());
    p.value = shrunk_value(p) - p.lr * factor * orthogonal(u, p);
}

}  // namespace mezzo::optim
