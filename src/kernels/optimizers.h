// Formulas of the optimizers whose update is one kernel. The struct of an optimizer type (a "row") has its
// options with their rules, the names of its state, and the formula for every device. Formulas and their
// order of evaluation are PyTorch's; include/mezzo/optim_options.h writes them out.
//
// A Formula is made once per parameter and update, from the options and the parameter's numbers on the
// device: numbers[0] counts the updates so far, and the row's own numbers follow, as named in `counted`.
// update() is the update of one element: w is the parameter, g the gradient, s the state; it returns the new
// parameter. C is float or double. A way is a combination of options that would need a branch per element:
// the CPU has a template specialisation of the loop for each, in which `way` is a constant; a CUDA kernel
// gets `way` at run time. used(way) has bit k set if state k takes part. A row whose state may be stored
// in less than 32 bits has storage(), and in signed_state bit k is set if state k has signs.
#pragma once

#include "kernels/functor_math.h"
#include "mezzo/optim_options.h"

namespace mezzo {

// Rule for the values of an option; flags are recognised by their type.
enum class Rule : std::uint8_t { finite, not_negative, below_one };

inline constexpr int max_optimizer_options = 9, max_optimizer_state = 3;

// Storage of one state of a parameter (kernels/narrow_state.h).
enum class StateFormat : std::uint8_t {
    wide,             // float32, or float64 for float64 parameters
    bf16,             // bfloat16, rounded stochastically
    signed_blocks,    // Block8
    unsigned_blocks,  // Block8 without signs
};
// Storage of all states of a parameter.
struct StateStorage {
    StateFormat format[max_optimizer_state] = {};
    bool sensitive = false;  // of parameters that keep float32 by default, too
};

}  // namespace mezzo

namespace mezzo::functors {
MEZZO_FUNCTORS_OPEN

// Defaults of an optimizer type: it counts its steps, and has one way to compute.
struct OptimizerRow {
    static constexpr const char* counted[] = {"steps"};
    static constexpr unsigned ways = 1;
    // Whether numbers[0] serves only to find the first update of the state, so that it may count from there.
    static constexpr bool counts_from_state = false;
    template <class Options> MEZZO_HD static unsigned way(const Options&) { return 0; }
    template <class Options> MEZZO_HD static void advance(const Options&, float*) {}
};

struct SGDRow : OptimizerRow {
    using Options = optim::SGDOptions;
    static constexpr const char* state[] = {"momentum_buffer"};
    static constexpr bool counts_from_state = true;
    template <class O, class Visit> MEZZO_HD static void options(O& o, Visit& visit) {
        visit("lr", o.lr, Rule::not_negative);
        visit("weight_decay", o.weight_decay, Rule::not_negative);
        visit("momentum", o.momentum, Rule::not_negative);
        visit("dampening", o.dampening, Rule::finite);
        visit("nesterov", o.nesterov);
        visit("maximize", o.maximize);
        visit.require(!o.nesterov || (o.momentum > 0 && o.dampening == 0),
                      "nesterov needs momentum > 0 and dampening 0");
    }
    static constexpr unsigned ways = 6, momentum = 2, nesterov = 4;  // plus 1 with weight decay
    MEZZO_HD static unsigned way(const Options& o) {
        return (o.weight_decay != 0 ? 1u : 0u) + (o.momentum == 0 ? 0u : o.nesterov ? nesterov : momentum);
    }
    MEZZO_HD static constexpr unsigned used(unsigned way) { return way >= momentum ? 1 : 0; }

    template <class C> struct Formula {
        C lr, decay, mu, gain;
        bool first;
        MEZZO_HD Formula(const Options& o, const float* numbers)
            : lr(static_cast<C>(o.lr)),
              decay(static_cast<C>(o.weight_decay)),
              mu(static_cast<C>(o.momentum)),
              gain(static_cast<C>(1 - o.dampening)),
              first(numbers[0] == 0) {}
        MEZZO_HD C update(C w, C g, C* s, unsigned way) const {
            if ((way & 1) != 0) g = g + decay * w;
            if (way >= momentum) {
                // The first update ignores the buffer's content, even if it is NaN.
                const C b = first ? g : mu * s[0] + gain * g;
                s[0] = b;
                g = way >= nesterov ? g + mu * b : b;
            }
            return w - lr * g;
        }
    };
};

template <class Options_, bool decoupled> struct AdamRowOf : OptimizerRow {
    using Options = Options_;
    static constexpr const char* state[] = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"};
    template <class O, class Visit> MEZZO_HD static void options(O& o, Visit& visit) {
        visit("lr", o.lr, Rule::not_negative);
        visit("weight_decay", o.weight_decay, Rule::not_negative);
        visit("beta1", o.beta1, Rule::below_one);
        visit("beta2", o.beta2, Rule::below_one);
        visit("eps", o.eps, Rule::not_negative);
        visit("amsgrad", o.amsgrad);
        visit("maximize", o.maximize);
        visit.storage(o.states, o.narrow_all);
        visit.require(!o.amsgrad || o.states == optim::StatePrecision::fp32,
                      "states in less than 32 bits need amsgrad = false");
    }
    static StateStorage storage(const Options& o) {
        constexpr StateFormat wide = StateFormat::wide, half = StateFormat::bf16,
                              codes = StateFormat::signed_blocks;
        constexpr StateStorage storages[] = {// by StatePrecision
                                             {{wide, wide}},
                                             {{half, half}},
                                             {{codes, half}},
                                             {{codes, StateFormat::unsigned_blocks}}};
        StateStorage storage = storages[static_cast<int>(o.states)];
        storage.sensitive = o.narrow_all;
        return storage;
    }
    static constexpr unsigned signed_state = 1;
    static constexpr unsigned ways = decoupled ? 2 : 4, amsgrad = 1, decayed = 2;
    MEZZO_HD static unsigned way(const Options& o) {
        return (o.amsgrad ? amsgrad : 0u) + (!decoupled && o.weight_decay != 0 ? decayed : 0u);
    }
    MEZZO_HD static constexpr unsigned used(unsigned way) { return (way & amsgrad) != 0 ? 7 : 3; }

    template <class C> struct Formula {
        C shrink, decay, beta1, beta2, one_minus_beta1, one_minus_beta2, eps, step_size, root_correction2;
        MEZZO_HD Formula(const Options& o, const float* numbers)
            : shrink(static_cast<C>(decoupled ? 1 - o.lr * o.weight_decay : 1.0)),
              decay(static_cast<C>(o.weight_decay)),
              beta1(static_cast<C>(o.beta1)),
              beta2(static_cast<C>(o.beta2)),
              one_minus_beta1(static_cast<C>(1 - o.beta1)),
              one_minus_beta2(static_cast<C>(1 - o.beta2)),
              eps(static_cast<C>(o.eps)) {
            const double t = static_cast<double>(numbers[0]) + 1;
            step_size = static_cast<C>(o.lr / (1 - math::pow(o.beta1, t)));
            root_correction2 = static_cast<C>(math::sqrt(1 - math::pow(o.beta2, t)));
        }
        MEZZO_HD C update(C w, C g, C* s, unsigned way) const {
            w = w * shrink;  // times 1 in Adam, so that Adam and AdamW round alike
            if ((way & decayed) != 0) g = g + decay * w;
            const C m = beta1 * s[0] + one_minus_beta1 * g;
            C v = beta2 * s[1] + one_minus_beta2 * g * g;
            s[0] = m;
            s[1] = v;
            if ((way & amsgrad) != 0) {
                v = s[2] > v || s[2] != s[2] ? s[2] : v;  // NaN stays, as in torch.maximum
                s[2] = v;
            }
            return w - step_size * (m / (math::sqrt(v) / root_correction2 + eps));
        }
    };
};
using AdamRow = AdamRowOf<optim::AdamOptions, false>;
using AdamWRow = AdamRowOf<optim::AdamWOptions, true>;

struct RMSpropRow : OptimizerRow {
    using Options = optim::RMSpropOptions;
    static constexpr const char* state[] = {"square_avg", "momentum_buffer", "grad_avg"};
    template <class O, class Visit> MEZZO_HD static void options(O& o, Visit& visit) {
        visit("lr", o.lr, Rule::not_negative);
        visit("alpha", o.alpha, Rule::below_one);
        visit("eps", o.eps, Rule::not_negative);
        visit("weight_decay", o.weight_decay, Rule::not_negative);
        visit("momentum", o.momentum, Rule::not_negative);
        visit("centered", o.centered);
        visit("maximize", o.maximize);
    }
    static constexpr unsigned ways = 4, momentum = 1, centered = 2;
    MEZZO_HD static unsigned way(const Options& o) {
        return (o.momentum > 0 ? momentum : 0u) + (o.centered ? centered : 0u);
    }
    MEZZO_HD static constexpr unsigned used(unsigned way) {
        return 1u + ((way & momentum) != 0 ? 2u : 0u) + ((way & centered) != 0 ? 4u : 0u);
    }

    template <class C> struct Formula {
        C lr, alpha, one_minus_alpha, eps, decay, mu;
        MEZZO_HD Formula(const Options& o, const float*)
            : lr(static_cast<C>(o.lr)),
              alpha(static_cast<C>(o.alpha)),
              one_minus_alpha(static_cast<C>(1 - o.alpha)),
              eps(static_cast<C>(o.eps)),
              decay(static_cast<C>(o.weight_decay)),
              mu(static_cast<C>(o.momentum)) {}
        MEZZO_HD C update(C w, C g, C* s, unsigned way) const {
            g = decay != C(0) ? g + decay * w : g;
            const C square = alpha * s[0] + one_minus_alpha * g * g;
            s[0] = square;
            C variance = square;
            if ((way & centered) != 0) {
                const C mean = s[2] + one_minus_alpha * (g - s[2]);
                s[2] = mean;
                // Rounding may make it negative where the gradient hardly changes.
                variance = square - mean * mean;
                variance = variance < C(0) ? C(0) : variance;
            }
            C direction = g / (math::sqrt(variance) + eps);
            if ((way & momentum) != 0) s[1] = direction = mu * s[1] + direction;
            return w - lr * direction;
        }
    };
};

struct AdagradRow : OptimizerRow {
    using Options = optim::AdagradOptions;
    static constexpr const char* state[] = {"sum"};
    template <class O, class Visit> MEZZO_HD static void options(O& o, Visit& visit) {
        visit("lr", o.lr, Rule::not_negative);
        visit("lr_decay", o.lr_decay, Rule::not_negative);
        visit("weight_decay", o.weight_decay, Rule::not_negative);
        visit("initial_accumulator_value", o.initial_accumulator_value, Rule::not_negative);
        visit("eps", o.eps, Rule::not_negative);
        visit("maximize", o.maximize);
    }
    MEZZO_HD static constexpr unsigned used(unsigned) { return 1; }

    template <class C> struct Formula {
        C step_size, decay, initial, eps;
        bool first;
        MEZZO_HD Formula(const Options& o, const float* numbers)
            : step_size(static_cast<C>(o.lr / (1 + static_cast<double>(numbers[0]) * o.lr_decay))),
              decay(static_cast<C>(o.weight_decay)),
              initial(static_cast<C>(o.initial_accumulator_value)),
              eps(static_cast<C>(o.eps)),
              first(numbers[0] == 0) {}
        MEZZO_HD C update(C w, C g, C* s, unsigned) const {
            g = decay != C(0) ? g + decay * w : g;
            const C sum = (first ? initial : s[0]) + g * g;
            s[0] = sum;
            return w - step_size * (g / (math::sqrt(sum) + eps));
        }
    };
};

struct NAdamRow : OptimizerRow {
    using Options = optim::NAdamOptions;
    static constexpr const char* state[] = {"exp_avg", "exp_avg_sq"};
    // mu_product: the product of all mu_t so far
    static constexpr const char* counted[] = {"steps", "mu_product"};
    template <class O, class Visit> MEZZO_HD static void options(O& o, Visit& visit) {
        visit("lr", o.lr, Rule::not_negative);
        visit("beta1", o.beta1, Rule::below_one);
        visit("beta2", o.beta2, Rule::below_one);
        visit("eps", o.eps, Rule::not_negative);
        visit("weight_decay", o.weight_decay, Rule::not_negative);
        visit("momentum_decay", o.momentum_decay, Rule::not_negative);
        visit("decoupled_weight_decay", o.decoupled_weight_decay);
        visit("maximize", o.maximize);
    }
    MEZZO_HD static constexpr unsigned used(unsigned) { return 3; }
    MEZZO_HD static double mu(const Options& o, double t) {
        return o.beta1 * (1 - 0.5 * math::pow(0.96, t * o.momentum_decay));
    }
    MEZZO_HD static float product(const Options& o, const float* numbers) {
        const double before = numbers[0] == 0 ? 1.0 : static_cast<double>(numbers[1]);
        return static_cast<float>(before * mu(o, static_cast<double>(numbers[0]) + 1));
    }
    MEZZO_HD static void advance(const Options& o, float* numbers) { numbers[1] = product(o, numbers); }

    template <class C> struct Formula {
        C shrink, decay, one_minus_beta1, beta2, one_minus_beta2, eps, correction2, along_gradient,
            along_moment;
        MEZZO_HD Formula(const Options& o, const float* numbers)
            : shrink(static_cast<C>(o.decoupled_weight_decay ? 1 - o.lr * o.weight_decay : 1.0)),
              decay(static_cast<C>(o.decoupled_weight_decay ? 0.0 : o.weight_decay)),
              one_minus_beta1(static_cast<C>(1 - o.beta1)),
              beta2(static_cast<C>(o.beta2)),
              one_minus_beta2(static_cast<C>(1 - o.beta2)),
              eps(static_cast<C>(o.eps)) {
            const double t = static_cast<double>(numbers[0]) + 1, next = mu(o, t + 1);
            const double so_far = static_cast<double>(product(o, numbers));
            correction2 = static_cast<C>(1 - math::pow(o.beta2, t));
            along_gradient = static_cast<C>(o.lr * (1 - mu(o, t)) / (1 - so_far));
            along_moment = static_cast<C>(o.lr * next / (1 - so_far * next));
        }
        MEZZO_HD C update(C w, C g, C* s, unsigned) const {
            w = w * shrink;
            g = decay != C(0) ? g + decay * w : g;
            const C m = s[0] + one_minus_beta1 * (g - s[0]);
            const C v = beta2 * s[1] + one_minus_beta2 * g * g;
            s[0] = m;
            s[1] = v;
            const C root = math::sqrt(v / correction2) + eps;
            w = w - along_gradient * (g / root);
            return w - along_moment * (m / root);
        }
    };
};

struct LionRow : OptimizerRow {
    using Options = optim::LionOptions;
    static constexpr const char* state[] = {"exp_avg"};
    template <class O, class Visit> MEZZO_HD static void options(O& o, Visit& visit) {
        visit("lr", o.lr, Rule::not_negative);
        visit("beta1", o.beta1, Rule::below_one);
        visit("beta2", o.beta2, Rule::below_one);
        visit("weight_decay", o.weight_decay, Rule::not_negative);
        visit("maximize", o.maximize);
    }
    MEZZO_HD static constexpr unsigned used(unsigned) { return 1; }

    template <class C> struct Formula {
        C lr, shrink, beta1, one_minus_beta1, beta2, one_minus_beta2;
        MEZZO_HD Formula(const Options& o, const float*)
            : lr(static_cast<C>(o.lr)),
              shrink(static_cast<C>(1 - o.lr * o.weight_decay)),
              beta1(static_cast<C>(o.beta1)),
              one_minus_beta1(static_cast<C>(1 - o.beta1)),
              beta2(static_cast<C>(o.beta2)),
              one_minus_beta2(static_cast<C>(1 - o.beta2)) {}
        MEZZO_HD C update(C w, C g, C* s, unsigned) const {
            const C m = beta1 * s[0] + one_minus_beta1 * g;
            s[0] = beta2 * s[0] + one_minus_beta2 * g;
            const C sign = m > C(0) ? C(1) : m < C(0) ? C(-1) : m;  // the sign of 0 is 0, of NaN it is NaN
            return w * shrink - lr * sign;
        }
    };
};

MEZZO_FUNCTORS_CLOSE
}  // namespace mezzo::functors
