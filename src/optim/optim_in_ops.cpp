// Optimizers written in ops: their options and their updates.
#include "mezzo/optim_in_ops.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "mezzo/ops.h"
#include "mezzo/product_ops.h"
#include "optim/optimizer.h"

namespace mezzo::optim {

namespace {

using Field = OptionField;
using Type = OptionField::Type;

#define MEZZO_FIELD(options, field, ...) \
    { #field, offsetof(options, field), __VA_ARGS__ }
#define MEZZO_SIZE(options, field) MEZZO_FIELD(options, field, Type::real)               // >= 0
#define MEZZO_SHARE(options, field) MEZZO_FIELD(options, field, Type::real, 0, 1, true)  // in [0, 1)
#define MEZZO_FLAG(options, field) MEZZO_FIELD(options, field, Type::flag)

#define MEZZO_ADAM_FIELDS(options)                                                           \
    MEZZO_SIZE(options, lr), MEZZO_SIZE(options, weight_decay), MEZZO_SHARE(options, beta1), \
        MEZZO_SHARE(options, beta2), MEZZO_SIZE(options, eps), MEZZO_FLAG(options, maximize)

constexpr Field lamb_options[] = {MEZZO_ADAM_FIELDS(LAMBOptions)};
constexpr Field adamax_options[] = {MEZZO_ADAM_FIELDS(AdamaxOptions)};
constexpr Field radam_options[] = {MEZZO_ADAM_FIELDS(RAdamOptions),
                                   MEZZO_FLAG(RAdamOptions, decoupled_weight_decay)};
constexpr Field adadelta_options[] = {MEZZO_SIZE(AdadeltaOptions, lr),
                                      MEZZO_SIZE(AdadeltaOptions, weight_decay),
                                      MEZZO_SHARE(AdadeltaOptions, rho), MEZZO_SIZE(AdadeltaOptions, eps),
                                      MEZZO_FLAG(AdadeltaOptions, maximize)};
constexpr Field asgd_options[] = {MEZZO_SIZE(ASGDOptions, lr),    MEZZO_SIZE(ASGDOptions, weight_decay),
                                  MEZZO_SIZE(ASGDOptions, lambd), MEZZO_SIZE(ASGDOptions, alpha),
                                  MEZZO_SIZE(ASGDOptions, t0),    MEZZO_FLAG(ASGDOptions, maximize)};
constexpr Field rprop_options[] = {MEZZO_SIZE(RpropOptions, lr),
                                   MEZZO_SHARE(RpropOptions, eta_minus),
                                   MEZZO_FIELD(RpropOptions, eta_plus, Type::real, 1),
                                   MEZZO_SIZE(RpropOptions, step_size_min),
                                   MEZZO_SIZE(RpropOptions, step_size_max),
                                   MEZZO_FLAG(RpropOptions, maximize)};
constexpr Field adafactor_options[] = {MEZZO_SIZE(AdafactorOptions, lr),
                                       MEZZO_SIZE(AdafactorOptions, weight_decay),
                                       MEZZO_FIELD(AdafactorOptions, beta2_decay, Type::real, -INFINITY, 0),
                                       MEZZO_SIZE(AdafactorOptions, eps1),
                                       MEZZO_SIZE(AdafactorOptions, eps2),
                                       MEZZO_FIELD(AdafactorOptions, d, Type::real, 1),
                                       MEZZO_FLAG(AdafactorOptions, maximize)};
constexpr std::size_t coefficients = offsetof(MuonOptions, ns_coefficients);
constexpr Field muon_options[] = {MEZZO_SIZE(MuonOptions, lr),
                                  MEZZO_SIZE(MuonOptions, weight_decay),
                                  MEZZO_SIZE(MuonOptions, momentum),
                                  MEZZO_FLAG(MuonOptions, nesterov),
                                  {"ns_a", coefficients, Type::real, -INFINITY},
                                  {"ns_b", coefficients + sizeof(double), Type::real, -INFINITY},
                                  {"ns_c", coefficients + 2 * sizeof(double), Type::real, -INFINITY},
                                  MEZZO_SIZE(MuonOptions, eps),
                                  MEZZO_FIELD(MuonOptions, ns_steps, Type::integer, 0, 99),
                                  MEZZO_FIELD(MuonOptions, adjust_lr_fn, Type::enumerator, 0, 2)};

#undef MEZZO_ADAM_FIELDS
#undef MEZZO_FLAG
#undef MEZZO_SHARE
#undef MEZZO_SIZE
#undef MEZZO_FIELD

constexpr const char* adam_state[] = {"exp_avg", "exp_avg_sq"};
constexpr const char* adamax_state[] = {"exp_avg", "exp_inf"};
constexpr const char* adadelta_state[] = {"square_avg", "acc_delta"};
constexpr const char* asgd_state[] = {"ax", "eta"};
constexpr const char* rprop_state[] = {"prev", "step_size"};
constexpr const char* adafactor_state[] = {"row_var", "col_var", "variance"};
constexpr const char* muon_state[] = {"momentum_buffer"};

Shape asgd_shape(const std::string& state, const Shape& parameter) {
    return state == "eta" ? Shape() : parameter;
}

// The factors of a parameter of two or more dimensions, the means over its last and second to last one; of
// other parameters the variance itself. The others are empty.
Shape adafactor_shape(const std::string& state, const Shape& parameter) {
    const int dims = parameter.size();
    if ((dims > 1) == (state == "variance")) return {0};
    Shape shape = parameter;
    if (dims > 1) shape[state == "row_var" ? dims - 1 : dims - 2] = 1;
    return shape;
}

constexpr OptimizerTable lamb_table{"LAMB", lamb_options, adam_state};
constexpr OptimizerTable radam_table{"RAdam", radam_options, adam_state};
constexpr OptimizerTable adamax_table{"Adamax", adamax_options, adamax_state};
constexpr OptimizerTable adadelta_table{"Adadelta", adadelta_options, adadelta_state};
constexpr OptimizerTable asgd_table{"ASGD", asgd_options, asgd_state, asgd_shape};
constexpr OptimizerTable rprop_table{"Rprop", rprop_options, rprop_state};
constexpr OptimizerTable adafactor_table{"Adafactor", adafactor_options, adafactor_state, adafactor_shape};
constexpr OptimizerTable muon_table{"Muon", muon_options, muon_state};

OptimizerImpl* make(const OptimizerTable& table, const Tensors& params, const void* options,
                    const StateDict& named) {
    TableOptimizer optimizer(table);
    optimizer.add(params, options, named);
    return optimizer.release();
}
template <class Group> OptimizerImpl* make(const OptimizerTable& table, const std::vector<Group>& groups) {
    TableOptimizer optimizer(table);
    for (const Group& group : groups) optimizer.add(group.params, &group.options, group.named_params);
    return optimizer.release();
}

void check_matrices(const OptimizerImpl& optimizer) {
    for (std::size_t i = 0; i < optimizer.slots.size(); ++i) {
        const Tensor& parameter = optimizer.slots[i].param;
        check(parameter.dim() == 2, ErrorKind::shape, "Muon: ", optimizer.describe(i), " has shape ",
              parameter.shape(), "; it updates matrices; give this parameter to AdamW");
    }
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

#define MEZZO_OPTIMIZER_IN_OPS(name, table, ...)                            \
    name::name(const Tensors& params, const name##Options& options)         \
        : CustomOptimizer(make(table, params, &options, {})) {              \
        __VA_ARGS__;                                                        \
    }                                                                       \
    name::name(const StateDict& named_params, const name##Options& options) \
        : CustomOptimizer(make(table, {}, &options, named_params)) {        \
        __VA_ARGS__;                                                        \
    }                                                                       \
    name::name(const std::vector<name##Group>& groups) : CustomOptimizer(make(table, groups)) { __VA_ARGS__; }
MEZZO_OPTIMIZER_IN_OPS(LAMB, lamb_table)
MEZZO_OPTIMIZER_IN_OPS(RAdam, radam_table)
MEZZO_OPTIMIZER_IN_OPS(Adamax, adamax_table)
MEZZO_OPTIMIZER_IN_OPS(Adadelta, adadelta_table)
MEZZO_OPTIMIZER_IN_OPS(ASGD, asgd_table)
MEZZO_OPTIMIZER_IN_OPS(Rprop, rprop_table)
MEZZO_OPTIMIZER_IN_OPS(Adafactor, adafactor_table)
MEZZO_OPTIMIZER_IN_OPS(Muon, muon_table, check_matrices(impl()))
#undef MEZZO_OPTIMIZER_IN_OPS

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
