// The optimizers other than SGD, Adam and AdamW, and the optimizers' common options, against PyTorch and the
// papers.
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>

#include "mezzo/mezzo.h"
#include "tests/reference/optimizers.h"
#include "tests/reference/pytorch.h"
#include "tests/support/support.h"

using namespace mezzo;
using Catch::Matchers::Contains;

namespace {

constexpr int steps = 8, size = 5;
using Trajectory = double[steps][size];

std::vector<double> start() { return {reference::start[0], reference::start[0] + size}; }
std::vector<double> gradient(int t) { return {reference::gradients[t], reference::gradients[t] + size}; }

// Runs the gradients through an optimizer over a parameter of each dtype on each device, 16-bit ones with
// masters, and compares the parameter, or its master, after each step. `exact`: relative error in float64.
template <class Optimizer, class Options>
void follows(const Trajectory& expected, const Options& options, double exact = 1e-13) {
    for (const Device device : test::devices())
        for (const Dtype dtype : {float32, float64, float16, bfloat16}) {
            const Tensor w = test::tensor_of(start(), {size}, dtype, device).set_requires_grad();
            Optimizer optimizer({w}, options);
            if (is_16bit(dtype)) optimizer.use_master_weights();
            for (int t = 0; t < steps; ++t) {
                w.set_grad(
                    test::tensor_of(gradient(t), {size}, dtype == float64 ? float64 : float32, device));
                optimizer.step();
                const Tensor master = optimizer.master_parameters()[0];
                const std::vector<double> actual = test::doubles(master);
                for (int i = 0; i < size; ++i) {
                    INFO(optimizer.type_name() << " " << name(dtype) << ", step " << t << ", element " << i);
                    const double slack = dtype == float64 ? exact : 3e-6;
                    CHECK(actual[std::size_t(i)] == Approx(expected[t][i]).epsilon(slack).margin(slack));
                }
                CHECK(test::doubles(w) == test::doubles(master.detach().to(dtype)));
            }
        }
}

// Fills in the trajectory that a formula gives in float64 from the parameter and the gradient of update t.
template <class Formula> void trajectory(Trajectory& result, Formula formula) {
    std::vector<double> w = start();
    for (int t = 0; t < steps; ++t) {
        formula(w, gradient(t), t + 1);
        std::copy(w.begin(), w.end(), result[t]);
    }
}

using namespace optim;

}  // namespace

TEST_CASE("Adam and AdamW with amsgrad follow PyTorch", "[optim]") {
    follows<Adam>(reference::adam_amsgrad,
                  AdamOptions{.lr = 0.05, .beta1 = 0.8, .beta2 = 0.5, .weight_decay = 0.1, .amsgrad = true});
    follows<AdamW>(
        reference::adamw_amsgrad,
        AdamWOptions{
            .lr = 0.05, .beta1 = 0.8, .beta2 = 0.5, .weight_decay = 0.3, .amsgrad = true, .maximize = true});
}

TEST_CASE("RMSprop follows PyTorch", "[optim]") {
    follows<RMSprop>(reference::rmsprop, RMSpropOptions{.lr = 0.05});
    follows<RMSprop>(reference::rmsprop_momentum,
                     RMSpropOptions{.lr = 0.05, .alpha = 0.8, .weight_decay = 0.1, .momentum = 0.7});
    follows<RMSprop>(
        reference::rmsprop_centered,
        RMSpropOptions{.lr = 0.02, .alpha = 0.9, .eps = 1e-4, .centered = true, .maximize = true}, 1e-11);
    follows<RMSprop>(reference::rmsprop_both,
                     RMSpropOptions{.lr = 0.02, .alpha = 0.7, .momentum = 0.5, .centered = true}, 1e-11);
}

TEST_CASE("RMSprop stays finite where the gradient does not change", "[optim]") {
    const Tensor w = ones({1000}).set_requires_grad();
    RMSprop optimizer({w}, {.alpha = 0.5, .centered = true});
    const Tensor gradient = test::tensor_of(test::random_values(1000, 1, test::Domain::any), {1000}, float32);
    for (int t = 0; t < 60; ++t) {
        w.set_grad(gradient);
        optimizer.step();
    }
    for (const float x : w.to_vector<float>()) CHECK(std::isfinite(x));
}

TEST_CASE("Adagrad follows PyTorch", "[optim]") {
    follows<Adagrad>(reference::adagrad, AdagradOptions{.lr = 0.1});
    follows<Adagrad>(
        reference::adagrad_decay,
        AdagradOptions{
            .lr = 0.1, .lr_decay = 0.2, .weight_decay = 0.1, .initial_accumulator_value = 0.5, .eps = 1e-3});
    follows<Adagrad>(reference::adagrad_maximize, AdagradOptions{.lr = 0.1, .maximize = true});
}

TEST_CASE("NAdam follows PyTorch", "[optim]") {
    // PyTorch keeps the product of the momenta in float32 as well.
    follows<NAdam>(reference::nadam, NAdamOptions{.lr = 0.05}, 1e-6);
    follows<NAdam>(
        reference::nadam_decay,
        NAdamOptions{
            .lr = 0.05, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-4, .weight_decay = 0.1, .momentum_decay = 0.3},
        1e-6);
    follows<NAdam>(
        reference::nadam_decoupled,
        NAdamOptions{.lr = 0.05, .weight_decay = 0.2, .decoupled_weight_decay = true, .maximize = true},
        1e-6);
}

TEST_CASE("Lion follows its paper", "[optim]") {
    const LionOptions o{.lr = 0.03, .beta1 = 0.8, .beta2 = 0.95, .weight_decay = 0.2, .maximize = true};
    std::vector<double> m(size, 0);
    Trajectory expected;
    trajectory(expected, [&](std::vector<double>& w, const std::vector<double>& g, int) {
        for (std::size_t i = 0; i < size; ++i) {
            const double c = o.beta1 * m[i] - (1 - o.beta1) * g[i];
            w[i] -= o.lr * ((c > 0) - (c < 0) + o.weight_decay * w[i]);
            m[i] = o.beta2 * m[i] - (1 - o.beta2) * g[i];
        }
    });
    follows<Lion>(expected, o);
}

TEST_CASE("Lion takes no step where momentum and gradient are 0, and NaN for NaN", "[optim]") {
    const Tensor w = ones({2}).set_requires_grad();
    Lion optimizer({w}, {.lr = 0.5});
    w.set_grad(Tensor::from({0, NAN}));
    optimizer.step();
    CHECK(w.to_vector<float>()[0] == 1);
    CHECK(std::isnan(w.to_vector<float>()[1]));
}

TEST_CASE("LAMB follows its paper", "[optim]") {
    const LAMBOptions o{.lr = 0.03, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-4, .weight_decay = 0.2};
    std::vector<double> m(size, 0), v(size, 0);
    Trajectory expected;
    trajectory(expected, [&](std::vector<double>& w, const std::vector<double>& g, int t) {
        std::vector<double> u(size);
        double w_squares = 0, u_squares = 0;
        for (std::size_t i = 0; i < size; ++i) {
            m[i] = o.beta1 * m[i] + (1 - o.beta1) * g[i];
            v[i] = o.beta2 * v[i] + (1 - o.beta2) * g[i] * g[i];
            u[i] =
                m[i] / (1 - std::pow(o.beta1, t)) / (std::sqrt(v[i] / (1 - std::pow(o.beta2, t))) + o.eps) +
                o.weight_decay * w[i];
            w_squares += w[i] * w[i];
            u_squares += u[i] * u[i];
        }
        for (std::size_t i = 0; i < size; ++i) w[i] -= o.lr * std::sqrt(w_squares / u_squares) * u[i];
    });
    follows<LAMB>(expected, o);
}

TEST_CASE("RAdam follows PyTorch", "[optim]") {
    follows<RAdam>(reference::radam, RAdamOptions{.lr = 0.05});
    follows<RAdam>(reference::radam_decay,
                   RAdamOptions{.lr = 0.05, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-4, .weight_decay = 0.1});
    follows<RAdam>(
        reference::radam_decoupled,
        RAdamOptions{
            .lr = 0.05, .beta2 = 0.9, .weight_decay = 0.2, .decoupled_weight_decay = true, .maximize = true});
}

TEST_CASE("Adamax follows PyTorch", "[optim]") {
    follows<Adamax>(reference::adamax, AdamaxOptions{.lr = 0.05});
    follows<Adamax>(
        reference::adamax_decay,
        AdamaxOptions{
            .lr = 0.05, .beta1 = 0.8, .beta2 = 0.5, .eps = 1e-3, .weight_decay = 0.1, .maximize = true});
}

TEST_CASE("Adadelta follows PyTorch", "[optim]") {
    follows<Adadelta>(reference::adadelta, AdadeltaOptions{});
    follows<Adadelta>(
        reference::adadelta_decay,
        AdadeltaOptions{.lr = 0.5, .rho = 0.7, .eps = 1e-2, .weight_decay = 0.1, .maximize = true});
}

TEST_CASE("ASGD follows PyTorch", "[optim]") {
    follows<ASGD>(reference::asgd, ASGDOptions{.lr = 0.1});
    follows<ASGD>(
        reference::asgd_decay,
        ASGDOptions{.lr = 0.1, .lambd = 0.2, .alpha = 0.6, .t0 = 3, .weight_decay = 0.1, .maximize = true});
}

TEST_CASE("ASGD averages the parameter from update t0 + 2 on", "[optim]") {
    const Tensor w = zeros({1}).set_requires_grad();
    ASGD optimizer({w}, {.lr = 1, .lambd = 0, .t0 = 2});
    for (int t = 1; t <= 8; ++t) {
        w.set_grad(-ones({1}));
        optimizer.step();
        const double average = optimizer.state_dict()["state.0.ax"].item<double>();
        CHECK(average == Approx(t <= 4 ? t : (4 + t) / 2.0));
    }
}

TEST_CASE("Rprop follows PyTorch", "[optim]") {
    follows<Rprop>(reference::rprop, RpropOptions{});
    follows<Rprop>(reference::rprop_bounds, RpropOptions{.lr = 0.05,
                                                         .eta_minus = 0.4,
                                                         .eta_plus = 1.7,
                                                         .step_size_min = 0.03,
                                                         .step_size_max = 0.09,
                                                         .maximize = true});
}

TEST_CASE("Adafactor follows PyTorch", "[optim]") {
    follows<Adafactor>(reference::adafactor, AdafactorOptions{.lr = 0.1});
    follows<Adafactor>(reference::adafactor_decay, AdafactorOptions{.lr = 0.5,
                                                                    .beta2_decay = -0.5,
                                                                    .eps1 = 1e-2,
                                                                    .eps2 = 0.05,
                                                                    .d = 1.5,
                                                                    .weight_decay = 0.1,
                                                                    .maximize = true});
}

TEST_CASE("LAMB moves a parameter that is 0", "[optim]") {
    const Tensor w = zeros({2}).set_requires_grad();
    LAMB optimizer({w}, {.lr = 0.5, .weight_decay = 0});
    w.set_grad(Tensor::from({1, -1}));
    optimizer.step();
    CHECK(w.to_vector<float>()[0] == Approx(-0.5).epsilon(1e-5));
}

namespace {

using Make = std::function<std::unique_ptr<Optimizer>(const Tensor&)>;
const std::vector<Make> makers = {
    [](const Tensor& w) { return std::make_unique<Adam>(Tensors{w}, AdamOptions{.amsgrad = true}); },
    [](const Tensor& w) {
        return std::make_unique<RMSprop>(Tensors{w}, RMSpropOptions{.momentum = 0.5, .centered = true});
    },
    [](const Tensor& w) { return std::make_unique<Adagrad>(Tensors{w}, AdagradOptions{.lr_decay = 0.5}); },
    [](const Tensor& w) { return std::make_unique<NAdam>(Tensors{w}); },
    [](const Tensor& w) { return std::make_unique<Lion>(Tensors{w}); },
    [](const Tensor& w) { return std::make_unique<LAMB>(Tensors{w}); },
    [](const Tensor& w) { return std::make_unique<RAdam>(Tensors{w}, RAdamOptions{.beta2 = 0.9}); },
    [](const Tensor& w) { return std::make_unique<Adamax>(Tensors{w}); },
    [](const Tensor& w) { return std::make_unique<Adadelta>(Tensors{w}); },
    [](const Tensor& w) { return std::make_unique<ASGD>(Tensors{w}, ASGDOptions{.lambd = 0.1, .t0 = 2}); },
    [](const Tensor& w) { return std::make_unique<Rprop>(Tensors{w}); },
    [](const Tensor& w) { return std::make_unique<Adafactor>(Tensors{w}); }};

void step_with(Optimizer& optimizer, const Tensor& w, int t) {
    w.set_grad(test::tensor_of(gradient(t), {size}, float32, w.device()));
    optimizer.step();
}

}  // namespace

TEST_CASE("the state of every optimizer continues bit for bit", "[optim]") {
    for (const Device device : test::devices())
        for (const Make& make : makers) {
            const Tensor w = test::tensor_of(start(), {size}, float32, device).set_requires_grad();
            const auto straight = make(w);
            INFO(straight->type_name());
            for (int t = 0; t < 3; ++t) step_with(*straight, w, t);
            const Tensor again = w.detach().clone().set_requires_grad();
            const auto resumed = make(again);
            resumed->set_lr(7);
            resumed->load_state_dict(straight->state_dict());
            for (int t = 3; t < steps; ++t) {
                step_with(*straight, w, t);
                step_with(*resumed, again, t);
            }
            CHECK(test::doubles(again) == test::doubles(w));
            const StateDict one = straight->state_dict(), other = resumed->state_dict();
            REQUIRE(one.size() == other.size());
            for (std::size_t i = 0; i < one.size(); ++i) {
                CHECK(one[i].first == other[i].first);
                CHECK(test::doubles(one[i].second) == test::doubles(other[i].second));
            }
        }
}

TEST_CASE("a state is refused by every other type of optimizer", "[optim]") {
    const Tensor w = ones({size}).set_requires_grad();
    for (std::size_t i = 0; i < makers.size(); ++i)
        for (std::size_t j = 0; j < makers.size(); ++j) {
            const StateDict state = makers[i](w)->state_dict();
            const auto other = makers[j](w);
            if (i != j) CHECK_THROWS_WITH(other->load_state_dict(state), Contains("another type"));
        }
}

TEST_CASE("a state that an earlier version wrote is read", "[optim]") {
    const Tensor w = ones({size}).set_requires_grad();
    Adam optimizer({w}, {.lr = 0.5});
    step_with(optimizer, w, 0);
    StateDict old = optimizer.state_dict();
    std::erase_if(old, [](const auto& entry) { return entry.first == "groups.0.amsgrad"; });
    for (const char* const name : {"momentum", "dampening", "nesterov"})
        old.emplace_back(std::string("groups.0.") + name, zeros({}, {.dtype = float64}));
    CHECK_NOTHROW(optimizer.load_state_dict(old));
    CHECK(optimizer.option("amsgrad") == 0);
}

TEST_CASE("options of the new optimizers are checked, and can be changed by name", "[optim]") {
    const Tensor w = ones({size}).set_requires_grad();
    CHECK_THROWS_WITH(RMSprop({w}, {.alpha = 1}), Contains("RMSprop: alpha is 1; it must be in [0, 1)"));
    CHECK_THROWS_WITH(Adagrad({w}, {.lr_decay = -1}), Contains("Adagrad: lr_decay is -1"));
    CHECK_THROWS_WITH(NAdam({w}, {.momentum_decay = NAN}), Contains("NAdam: momentum_decay"));
    CHECK_THROWS_WITH(Lion({w}, {.beta2 = 1}), Contains("Lion: beta2 is 1"));
    CHECK_THROWS_WITH(LAMB({w}, {.beta1 = 1}), Contains("LAMB: beta1 is 1"));
    CHECK_THROWS_WITH(RAdam({w}, {.beta2 = 1}), Contains("RAdam: beta2 is 1"));
    CHECK_THROWS_WITH(Adamax({w}, {.eps = -1}), Contains("Adamax: eps is -1"));
    CHECK_THROWS_WITH(Adadelta({w}, {.rho = 1}), Contains("Adadelta: rho is 1"));
    CHECK_THROWS_WITH(ASGD({w}, {.t0 = -1}), Contains("ASGD: t0 is -1"));
    CHECK_THROWS_WITH(Rprop({w}, {.eta_plus = 0.9}),
                      Contains("Rprop: eta_plus is 0.9; it must be in [1, inf]"));
    CHECK_THROWS_WITH(Adafactor({w}, {.beta2_decay = 0.1}),
                      Contains("beta2_decay is 0.1; it must be in [-inf, 0]"));
    CHECK_THROWS_WITH(Adafactor({w}, {.d = 0.5}), Contains("Adafactor: d is 0.5; it must be in [1, inf]"));
    RAdam radam({w}, {.decoupled_weight_decay = true});
    CHECK_THROWS_WITH(radam.set_option("decoupled_weight_decay", 0.5, 0), Contains("it must be 0 or 1"));
    CHECK(radam.to_string().find("decoupled_weight_decay=true") != std::string::npos);
    LAMB lamb({w});
    CHECK_THROWS_WITH(lamb.set_option("beta2", 1, 0), Contains("LAMB.set_option: beta2 is 1"));
    CHECK_THROWS_WITH(lamb.set_option("eps", -1, 0), Contains("eps is -1; it must be finite and >= 0"));
    CHECK(lamb.option("eps") == 1e-6);
    SGD sgd({w}, {.lr = 0.5, .momentum = 0.9});
    sgd.set_option("weight_decay", 0.25, 0);
    CHECK(sgd.option("weight_decay") == 0.25);
    sgd.set_option("lr", 2, 0);
    CHECK(sgd.lr() == 2);
    CHECK_THROWS_WITH(sgd.set_option("beta1", 0.5, 0), Contains("SGD.set_option: no option 'beta1'") &&
                                                           Contains("lr, weight_decay, momentum"));
    CHECK_THROWS_WITH(sgd.set_option("momentum", -1, 0), Contains("momentum is -1"));
    CHECK_THROWS_WITH(sgd.option("lr", 3), Contains("no group 3"));
    sgd.set_option("nesterov", 1, 0);
    CHECK_THROWS_WITH(sgd.set_option("dampening", 0.5, 0),
                      Contains("nesterov needs momentum > 0 and dampening 0; the options are lr 2"));
    CHECK(sgd.option("dampening") == 0);
}

TEST_CASE("SGD: momentum that is set later begins with the gradient, undampened", "[optim]") {
    for (const Device device : test::devices()) {
        const Tensor w = zeros({2}, {.device = device}).set_requires_grad();
        SGD first({w}, {.lr = 1});
        const auto step = [&](SGD& sgd, double gradient) {
            w.set_grad(full({2}, gradient, {.device = device}));
            sgd.step();
            return w.select(0, 1).item<double>();
        };
        CHECK(step(first, 1) == -1);
        first.set_option("momentum", 0.5, 0);
        first.set_option("dampening", 0.75, 0);
        SGD second({w});
        second.load_state_dict(first.state_dict());
        CHECK(step(second, 3) == -4);  // momentum_buffer = 3
        second.set_option("momentum", 0, 0);
        second.set_option("momentum", 1, 0);
        CHECK(step(second, 8) == -9);  // 3 + 0.25 * 8: the buffer is still there
    }
}
