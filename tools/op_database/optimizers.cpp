// Optimizers of torch.optim: some steps from given parameters along given gradients; their results are the
// parameters.
#include "mezzo/lbfgs.h"
#include "mezzo/optim_in_ops.h"
#include "tools/op_database/call.h"

namespace database {

namespace {

namespace optim = mezzo::optim;

Tensors parameters(const Call& c) {
    Tensors all;
    for (const Tensor& p : c.tensors("", 0)) all.push_back(p.detach().clone().set_requires_grad());
    return all;
}

template <class Optimizer, class Options> Tensors steps(const Call& c, const Options& options) {
    const Tensors all = parameters(c);
    Optimizer optimizer(all, options);
    for (const Json& gradients : c.json("", 1)) {
        for (std::size_t i = 0; i < all.size(); ++i) all[i].set_grad(c.tensor(gradients.at(i)));
        optimizer.step();
    }
    return all;
}

// The objective that module_database.py minimises, too: of p^4 / 4 + p g with the first gradients.
Tensors lbfgs(const Call& c) {
    const Tensors all = parameters(c), first = [&] {
        Tensors gradients;
        for (const Json& g : c.json("", 1).at(0)) gradients.push_back(c.tensor(g));
        return gradients;
    }();
    optim::LBFGSOptions options{.lr = c.number("lr", 99, 1),
                                .tolerance_grad = c.number("tolerance_grad", 99, 1e-7),
                                .maximize = c.flag("maximize", 99)};
    if (c.text("line_search_fn", 99, "") == "strong_wolfe")
        options.line_search_fn = optim::LineSearch::strong_wolfe;
    optim::LBFGS optimizer(all, options);
    const double sign = options.maximize ? -1 : 1;
    for (int step = 0; step < 2; ++step)
        optimizer.step([&] {
            optimizer.zero_grad();
            Tensor loss = mz::zeros({}, {.dtype = mz::float64});
            for (std::size_t i = 0; i < all.size(); ++i)
                loss = loss + sign * mz::sum(mz::square(mz::square(all[i])) / 4 + all[i] * first[i]);
            loss.backward();
            return loss;
        });
    return all;
}

double beta(const Call& c, std::size_t i, double otherwise) {
    return c.has("betas", 99) ? c.json("betas", 99).at(i).get<double>() : otherwise;
}
double of_pair(const Call& c, const char* name, std::size_t i, double otherwise) {
    return c.has(name, 99) ? c.json(name, 99).at(i).get<double>() : otherwise;
}

optim::MuonOptions muon(const Call& c) {
    const std::map<std::string, optim::MuonAdjustLr> modes{
        {"original", optim::MuonAdjustLr::original},
        {"match_rms_adamw", optim::MuonAdjustLr::match_rms_adamw},
        {"spectral_unclamped", optim::MuonAdjustLr::spectral_unclamped}};
    optim::MuonOptions o{.lr = c.number("lr", 99, 1e-3),
                         .weight_decay = c.number("weight_decay", 99, 0.1),
                         .momentum = c.number("momentum", 99, 0.95)};
    o.ns_steps = c.integer("ns_steps", 99, 5);
    o.adjust_lr_fn = modes.at(c.text("adjust_lr_fn", 99, "original"));
    for (std::size_t i = 0; i < 3; ++i)
        o.ns_coefficients[i] = of_pair(c, "ns_coefficients", i, o.ns_coefficients[i]);
    return o;
}

#define LR(otherwise) .lr = c.number("lr", 99, otherwise)
#define DECAY(otherwise) .weight_decay = c.number("weight_decay", 99, otherwise)
#define MAXIMIZE .maximize = c.flag("maximize", 99)
#define OPTIMIZER(Class, ...)                                                  \
    {                                                                          \
        "optim." #Class, [](const Call& c) -> Tensors {                        \
            return steps<optim::Class>(c, optim::Class##Options{__VA_ARGS__}); \
        }                                                                      \
    }

}  // namespace

Table optimizers() {
    return {
        OPTIMIZER(SGD, LR(1e-3), .momentum = c.number("momentum", 99, 0),
                  .dampening = c.number("dampening", 99, 0), DECAY(0), .nesterov = c.flag("nesterov", 99),
                  MAXIMIZE),
        OPTIMIZER(Adam, LR(1e-3), .beta1 = beta(c, 0, 0.9), .beta2 = beta(c, 1, 0.999),
                  .eps = c.number("eps", 99, 1e-8), DECAY(0), .amsgrad = c.flag("amsgrad", 99), MAXIMIZE),
        OPTIMIZER(AdamW, LR(1e-3), .beta1 = beta(c, 0, 0.9), .beta2 = beta(c, 1, 0.999),
                  .eps = c.number("eps", 99, 1e-8), DECAY(1e-2), .amsgrad = c.flag("amsgrad", 99), MAXIMIZE),
        OPTIMIZER(RMSprop, LR(1e-2), .alpha = c.number("alpha", 99, 0.99), .eps = c.number("eps", 99, 1e-8),
                  DECAY(0), .momentum = c.number("momentum", 99, 0), .centered = c.flag("centered", 99),
                  MAXIMIZE),
        OPTIMIZER(Adagrad, LR(1e-2), .lr_decay = c.number("lr_decay", 99, 0), DECAY(0),
                  .initial_accumulator_value = c.number("initial_accumulator_value", 99, 0),
                  .eps = c.number("eps", 99, 1e-10), MAXIMIZE),
        OPTIMIZER(NAdam, LR(2e-3), .beta1 = beta(c, 0, 0.9), .beta2 = beta(c, 1, 0.999),
                  .eps = c.number("eps", 99, 1e-8), DECAY(0),
                  .momentum_decay = c.number("momentum_decay", 99, 4e-3),
                  .decoupled_weight_decay = c.flag("decoupled_weight_decay", 99), MAXIMIZE),
        OPTIMIZER(RAdam, LR(1e-3), .beta1 = beta(c, 0, 0.9), .beta2 = beta(c, 1, 0.999),
                  .eps = c.number("eps", 99, 1e-8), DECAY(0),
                  .decoupled_weight_decay = c.flag("decoupled_weight_decay", 99), MAXIMIZE),
        OPTIMIZER(Adamax, LR(2e-3), .beta1 = beta(c, 0, 0.9), .beta2 = beta(c, 1, 0.999),
                  .eps = c.number("eps", 99, 1e-8), DECAY(0), MAXIMIZE),
        OPTIMIZER(Adadelta, LR(1), .rho = c.number("rho", 99, 0.9), .eps = c.number("eps", 99, 1e-6),
                  DECAY(0), MAXIMIZE),
        OPTIMIZER(ASGD, LR(1e-2), .lambd = c.number("lambd", 99, 1e-4), .alpha = c.number("alpha", 99, 0.75),
                  .t0 = c.number("t0", 99, 1e6), DECAY(0), MAXIMIZE),
        OPTIMIZER(Rprop, LR(1e-2), .eta_minus = of_pair(c, "etas", 0, 0.5),
                  .eta_plus = of_pair(c, "etas", 1, 1.2), .step_size_min = of_pair(c, "step_sizes", 0, 1e-6),
                  .step_size_max = of_pair(c, "step_sizes", 1, 50), MAXIMIZE),
        OPTIMIZER(Adafactor, LR(1e-2), .beta2_decay = c.number("beta2_decay", 99, -0.8),
                  .d = c.number("d", 99, 1), DECAY(0), MAXIMIZE),
        {"optim.Muon", [](const Call& c) { return steps<optim::Muon>(c, muon(c)); }},
        {"optim.LBFGS", lbfgs},
    };
}

}  // namespace database
