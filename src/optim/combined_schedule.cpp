// Schedules with several phases (warm restarts, cycles, weight averaging) and schedules of schedules
// (sequential, chained).
#include <algorithm>
#include <cmath>
#include <numbers>

#include "optim/optimizer.h"

#include "core/enumerators.h"

namespace mezzo::optim {

namespace {

void require(bool holds, const char* where, double value, const char* rule) {
    check(holds, ErrorKind::value, where, " is ", value, "; it must be ", rule);
}

Schedule warm_restarts(const CosineAnnealingWarmRestartsOptions& options) {
    require(options.t_0 > 0, "CosineAnnealingWarmRestarts: t_0", double(options.t_0), "positive");
    require(options.t_mult > 0, "CosineAnnealingWarmRestarts: t_mult", double(options.t_mult), "positive");
    require(std::isfinite(options.eta_min) && options.eta_min >= 0, "CosineAnnealingWarmRestarts: eta_min",
            options.eta_min, "finite and >= 0");
    return [options](double base, std::int64_t steps) {
        std::int64_t length = options.t_0, at = steps;
        if (options.t_mult == 1) {
            at %= length;
        } else {
            while (at >= length) {
                at -= length;
                length *= options.t_mult;
            }
        }
        const double angle = std::numbers::pi * double(at) / double(length);
        return options.eta_min + (base - options.eta_min) * (1 + std::cos(angle)) / 2;
    };
}

void check_cycle(const OneCycleLROptions& o) {
    require(std::isfinite(o.max_lr) && o.max_lr > 0, "OneCycleLR: max_lr", o.max_lr, "positive and finite");
    check_enumerator("OneCycleLR", "anneal", o.anneal, Anneal::linear);
    require(o.total_steps > 1, "OneCycleLR: total_steps", double(o.total_steps), "at least 2");
    require(o.pct_start >= 0 && o.pct_start <= 1, "OneCycleLR: pct_start", o.pct_start, "in [0, 1]");
    require(std::isfinite(o.div_factor) && o.div_factor > 0, "OneCycleLR: div_factor", o.div_factor,
            "positive and finite");
    require(std::isfinite(o.final_div_factor) && o.final_div_factor > 0, "OneCycleLR: final_div_factor",
            o.final_div_factor, "positive and finite");
    require(o.base_momentum >= 0 && o.base_momentum < 1, "OneCycleLR: base_momentum", o.base_momentum,
            "in [0, 1)");
    require(o.max_momentum >= 0 && o.max_momentum < 1, "OneCycleLR: max_momentum", o.max_momentum,
            "in [0, 1)");
}

// The value after `steps` steps of an option that starts at `start`, is `middle` when the rate is highest,
// goes back to `start` (three_phase only) and ends at `end`.
double cycle(const OneCycleLROptions& o, double start, double middle, double end, std::int64_t steps) {
    check(steps <= o.total_steps, ErrorKind::value, "OneCycleLR: step ", steps, " of ", o.total_steps,
          "; give total_steps all steps of the training");
    if (steps == o.total_steps) return end;  // nothing is trained with it
    const double last = double(o.total_steps - 1), rise = o.pct_start * double(o.total_steps) - 1;
    const double fall = o.three_phase ? 2 * rise : last;
    const auto between = [&](double a, double b, double first, double until) {
        const double part = until > first ? (double(steps) - first) / (until - first) : 1;
        if (o.anneal == Anneal::linear) return (b - a) * part + a;
        return b + (a - b) / 2 * (1 + std::cos(std::numbers::pi * part));
    };
    if (double(steps) <= rise) return between(start, middle, 0, rise);
    if (!o.three_phase) return between(middle, end, rise, last);
    if (double(steps) <= fall) return between(middle, start, rise, fall);
    return between(start, end, fall, last);
}

Schedule one_cycle(const OneCycleLROptions& options) {
    check_cycle(options);
    return [options](double, std::int64_t steps) {
        const double start = options.max_lr / options.div_factor;
        return cycle(options, start, options.max_lr, start / options.final_div_factor, steps);
    };
}

std::optional<autograd::Callback<double(std::int64_t)>> momentum_cycle(const OneCycleLROptions& options) {
    if (!options.cycle_momentum) return {};
    return autograd::Callback<double(std::int64_t)>([options](std::int64_t steps) {
        return cycle(options, options.max_momentum, options.base_momentum, options.max_momentum, steps);
    });
}

void check_cyclic(const CyclicLROptions& o) {
    const auto rate = [](const char* where, double value) {
        require(std::isfinite(value) && value >= 0, where, value, "finite and >= 0");
    };
    rate("CyclicLR: base_lr", o.base_lr);
    rate("CyclicLR: max_lr", o.max_lr);
    rate("CyclicLR: gamma", o.gamma);
    require(o.step_size_up > 0, "CyclicLR: step_size_up", double(o.step_size_up), "positive");
    require(o.step_size_down.value_or(1) > 0, "CyclicLR: step_size_down",
            double(o.step_size_down.value_or(1)), "positive");
    check_enumerator("CyclicLR", "mode", o.mode, CycleMode::exp_range);
    check_enumerator("CyclicLR", "scale_mode", o.scale_mode, CyclicLROptions::ScaleMode::iterations);
    require(o.base_momentum >= 0 && o.base_momentum < 1, "CyclicLR: base_momentum", o.base_momentum,
            "in [0, 1)");
    require(o.max_momentum >= 0 && o.max_momentum < 1, "CyclicLR: max_momentum", o.max_momentum, "in [0, 1)");
}

// The distance from the lower bound after `steps` steps, as a share of the distance between the bounds.
double cyclic_height(const CyclicLROptions& o, std::int64_t steps) {
    const double up = double(o.step_size_up), total = up + double(o.step_size_down.value_or(o.step_size_up));
    const double ratio = up / total, cycle = std::floor(1 + double(steps) / total);
    const double x = 1 + double(steps) / total - cycle;
    const double height = x <= ratio ? x / ratio : (x - 1) / (ratio - 1);
    if (o.scale_fn) {
        const bool of_cycle = o.scale_mode == CyclicLROptions::ScaleMode::cycle;
        return height * (*o.scale_fn)(of_cycle ? cycle : double(steps));
    }
    if (o.mode == CycleMode::triangular2) return height * std::pow(2.0, 1 - cycle);
    return o.mode == CycleMode::exp_range ? height * std::pow(o.gamma, double(steps)) : height;
}

Schedule cyclic(const CyclicLROptions& options) {
    check_cyclic(options);
    return [options](double, std::int64_t steps) {
        return options.base_lr + (options.max_lr - options.base_lr) * cyclic_height(options, steps);
    };
}

std::optional<autograd::Callback<double(std::int64_t)>> cyclic_momentum(const CyclicLROptions& options) {
    if (!options.cycle_momentum) return {};
    return autograd::Callback<double(std::int64_t)>([options](std::int64_t steps) {
        return options.max_momentum -
               (options.max_momentum - options.base_momentum) * cyclic_height(options, steps);
    });
}

}  // namespace

// The schedule of a scheduler that a `type` combines. Error(value) if it also changes the momentum.
Schedule schedule_of(const char* type, const Scheduler& scheduler) {
    check(!scheduler.momentum_, ErrorKind::value, type,
          ": a scheduler that changes the momentum cannot be combined; turn cycle_momentum off");
    return scheduler.schedule_;
}

namespace {

Schedule sequential(const std::vector<Scheduler>& schedulers, std::vector<std::int64_t> milestones) {
    check(!schedulers.empty() && milestones.size() + 1 == schedulers.size(), ErrorKind::value,
          "SequentialLR: ", schedulers.size(), " schedulers and ", milestones.size(),
          " milestones; there must be one milestone less");
    for (std::size_t i = 0; i < milestones.size(); ++i)
        check(milestones[i] > (i == 0 ? 0 : milestones[i - 1]), ErrorKind::value, "SequentialLR: milestone ",
              i, " is ", milestones[i], "; they must be positive and rise");
    std::vector<Schedule> parts;
    parts.reserve(schedulers.size());
    for (const Scheduler& scheduler : schedulers) parts.push_back(schedule_of("SequentialLR", scheduler));
    return [parts, milestones](double base, std::int64_t steps) {
        const auto next = std::upper_bound(milestones.begin(), milestones.end(), steps);
        const auto part = std::size_t(next - milestones.begin());
        return parts[part](base, part == 0 ? steps : steps - milestones[part - 1]);
    };
}

Schedule chained(const std::vector<Scheduler>& schedulers) {
    check(!schedulers.empty(), ErrorKind::value, "ChainedScheduler: there are no schedulers");
    std::vector<Schedule> parts;
    parts.reserve(schedulers.size());
    for (const Scheduler& scheduler : schedulers) parts.push_back(schedule_of("ChainedScheduler", scheduler));
    return [parts](double base, std::int64_t steps) {
        for (const Schedule& part : parts) base = part(base, steps);
        return base;
    };
}

Schedule averaging(const Schedule& before, const SWALROptions& o) {
    require(std::isfinite(o.swa_lr) && o.swa_lr >= 0, "SWALR: swa_lr", o.swa_lr, "finite and >= 0");
    require(o.start >= 0, "SWALR: start", double(o.start), ">= 0");
    require(o.anneal_steps >= 0, "SWALR: anneal_steps", double(o.anneal_steps), ">= 0");
    check_enumerator("SWALR", "anneal", o.anneal, Anneal::linear);
    return [before, o](double base, std::int64_t steps) {
        if (steps < o.start) return before(base, steps);
        if (steps - o.start >= o.anneal_steps) return o.swa_lr;
        const double part = double(steps - o.start) / double(o.anneal_steps);
        const double share = o.anneal == Anneal::linear ? part : (1 - std::cos(std::numbers::pi * part)) / 2;
        return o.swa_lr * share + before(base, o.start) * (1 - share);
    };
}

}  // namespace

CyclicLR::CyclicLR(Optimizer& optimizer, const CyclicLROptions& options)
    : Scheduler(optimizer, cyclic(options), cyclic_momentum(options)) {}

SWALR::SWALR(Optimizer& optimizer, const SWALROptions& options)
    : Scheduler(optimizer, averaging([](double base, std::int64_t) { return base; }, options)) {}

SWALR::SWALR(Optimizer& optimizer, const Scheduler& before, const SWALROptions& options)
    : Scheduler(optimizer, averaging(schedule_of("SWALR", before), options)) {}

CosineAnnealingWarmRestarts::CosineAnnealingWarmRestarts(Optimizer& optimizer,
                                                         const CosineAnnealingWarmRestartsOptions& options)
    : Scheduler(optimizer, warm_restarts(options)) {}

OneCycleLR::OneCycleLR(Optimizer& optimizer, const OneCycleLROptions& options)
    : Scheduler(optimizer, one_cycle(options), momentum_cycle(options)) {}

SequentialLR::SequentialLR(Optimizer& optimizer, const std::vector<Scheduler>& schedulers,
                           std::vector<std::int64_t> milestones)
    : Scheduler(optimizer, sequential(schedulers, std::move(milestones))) {}

ChainedScheduler::ChainedScheduler(Optimizer& optimizer, const std::vector<Scheduler>& schedulers)
    : Scheduler(optimizer, chained(schedulers)) {}

}  // namespace mezzo::optim
