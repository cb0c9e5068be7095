// The arithmetic of the loss scaler and of gradient clipping, for the step kernels of every device.
#pragma once

#include "kernels/functor_math.h"
#include "kernels/step.h"

namespace mezzo::functors {

// Visitors that copy a row's options from and to the array of StepArgs.
struct OptionsFromArray {
    const double* values;
    template <class R> MEZZO_HD void operator()(const char*, double& option, R) { option = *values++; }
    MEZZO_HD void operator()(const char*, bool& option) { option = *values++ != 0; }
    MEZZO_HD void storage(optim::StatePrecision& states, bool& narrow_all) {
        states = static_cast<optim::StatePrecision>(*values++);
        narrow_all = *values++ != 0;
    }
    MEZZO_HD void require(bool, const char*) {}
};
struct OptionsToArray {
    double* values;
    template <class R> MEZZO_HD void operator()(const char*, double option, R) { *values++ = option; }
    MEZZO_HD void operator()(const char*, bool option) { *values++ = option ? 1 : 0; }
    MEZZO_HD void storage(optim::StatePrecision states, bool narrow_all) {
        *values++ = static_cast<double>(states);
        *values++ = narrow_all ? 1 : 0;
    }
    MEZZO_HD void require(bool, const char*) {}
};
template <class Row> MEZZO_HD typename Row::Options options_of(const StepArgs& args) {
    typename Row::Options options{};
    OptionsFromArray read{args.options};
    Row::options(options, read);
    if (args.lr_on_device != nullptr) options.lr = *args.lr_on_device;
    return options;
}
template <class Row> StepArgs step_args(OptimizerId id, const typename Row::Options& options) {
    StepArgs args{.optimizer = id};
    OptionsToArray write{args.options};
    Row::options(options, write);
    return args;
}
// Overloads by the type of the options.
#define MEZZO_OPTIMIZER(name)                                        \
    inline StepArgs step_args(const optim::name##Options& options) { \
        return step_args<name##Row>(OptimizerId::name, options);     \
    }
#include "mezzo/optimizers.def"

// Everything that one parameter's update needs, apart from its elements. C is the type that it computes in.
template <class Row, class C> struct Prepared {
    typename Row::template Formula<C> formula;
    unsigned way;
    bool maximize;
    MEZZO_HD Prepared(const typename Row::Options& options, const float* numbers)
        : formula(options, numbers), way(Row::way(options)), maximize(options.maximize) {}
};
// Changes a parameter's numbers after an update has been applied.
template <class Row> MEZZO_HD void count_update(const typename Row::Options& options, float* numbers) {
    Row::advance(options, numbers);
    numbers[0] += 1;
}

// The scaler's state after update(), from `previous` and found_inf. The rule is PyTorch's, with >= for the
// interval, a floor, a cap, and hysteresis: the scale is lowered from the given number of overflows on. That
// count starts anew when the interval is complete, or, if refill_every_clean_step, after every step without
// overflow.
MEZZO_HD void advance(ScalerState& s, const StepKernels::ScalerArgs& a) {
    s.current = s.previous;
    if (!a.dynamic) return;
    ScaleValues& now = s.current;
    if (s.found_inf != 0) {
        now.growth_tracker = 0;
        now.hysteresis_left = now.hysteresis_left > 1 ? now.hysteresis_left - 1 : 0;
        const float lower = now.scale * a.backoff_factor;
        if (now.hysteresis_left == 0) now.scale = lower > a.min_scale ? lower : a.min_scale;
        return;
    }
    now.growth_tracker += 1;
    if (a.refill_every_clean_step) now.hysteresis_left = a.hysteresis;
    if (now.growth_tracker < a.growth_interval) return;
    const float higher = now.scale * a.growth_factor;
    if (higher <= a.max_scale && higher - higher == 0) now.scale = higher;
    now.growth_tracker = 0;
    now.hysteresis_left = a.hysteresis;
}

// Enters the result of a check into the scaler's state.
MEZZO_HD void note_check(ScalerState& s, bool first, bool bad, const StepKernels::ScalerArgs& a) {
    if (first) {
        s.previous = s.current;
        s.found_inf = 0;
    }
    if (bad) s.found_inf = 1;
    advance(s, a);
}

// 1/scale of this iteration, or 1.
MEZZO_HD float inverse_scale(const StepKernels::Statistics& wanted) {
    if (!wanted.scaled) return 1;
    const float scale = (wanted.first ? wanted.scaler->current : wanted.scaler->previous).scale;
    return static_cast<float>(1.0 / static_cast<double>(scale));
}

// NaN if the norm is NaN, as in PyTorch.
MEZZO_HD float value_of(const GradientFactor& factor) {
    const float multiplier = factor.state != nullptr ? factor.state->grad_multiplier : 1.0f;
    if (!factor.clip) return multiplier;
    const float ratio =
        static_cast<float>(factor.max_norm / (static_cast<double>(factor.state->norm) + 1e-6));
    return ratio >= 1 ? multiplier : multiplier * ratio;
}

}  // namespace mezzo::functors
