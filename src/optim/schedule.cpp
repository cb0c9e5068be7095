// Learning-rate schedules: functions of the base rate and of the steps applied.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <numbers>

#include "core/step_recorder.h"
#include "optim/optimizer.h"

namespace mezzo::optim {

namespace {

// The option that is the momentum of an optimizer.
const char* momentum_name(const OptimizerImpl& optimizer) {
    return optimizer.kind->find("momentum") >= 0 ? "momentum" : "beta1";
}

std::uint64_t next_id() {
    static std::atomic<std::uint64_t> last{0};
    return ++last;
}

bool in_charge(const std::vector<std::uint64_t>& schedulers, std::uint64_t id) {
    return !schedulers.empty() && schedulers.back() == id;
}

// Throws if another scheduler has become active since `id` last stepped. A scheduler becomes active when it
// steps for the first time.
void check_turn(const std::vector<std::uint64_t>& schedulers, std::uint64_t id) {
    if (in_charge(schedulers, id)) return;
    check(std::find(schedulers.begin(), schedulers.end(), id) == schedulers.end(), ErrorKind::state,
          "Scheduler.step: another scheduler of this optimizer has stepped since, and each sets the rate "
          "from the "
          "group's own; let SequentialLR or ChainedScheduler combine them, and step that one alone");
}

}  // namespace

Scheduler::Scheduler(Optimizer& optimizer, Schedule schedule)
    : Scheduler(optimizer, std::move(schedule), std::nullopt) {}

Scheduler::Scheduler(Optimizer& optimizer, Schedule schedule, std::optional<Momentum> momentum)
    : optimizer_(&optimizer), id_(next_id()), schedule_(std::move(schedule)), momentum_(std::move(momentum)) {
    check(!momentum_ || optimizer.impl().kind->find(momentum_name(optimizer.impl())) >= 0, ErrorKind::value,
          "Scheduler: ", optimizer.type_name(), " has no option momentum or beta1; turn cycle_momentum off");
    set_rates();
}

void Scheduler::step() {
    auto& schedulers = optimizer_->impl().schedulers;
    check_turn(schedulers, id_);
    set_rates();
    if (!in_charge(schedulers, id_)) schedulers.push_back(id_);
}

void Scheduler::set_rates() {
    refuse_in_capture("Scheduler.step", "change the learning rate");
    const std::int64_t steps = optimizer_->applied_steps();
    std::vector<double> rates;
    for (const Group& group : optimizer_->impl().groups) {
        const double lr = schedule_(group.initial_lr, steps);
        check(std::isfinite(lr) && lr >= 0, ErrorKind::value, "Scheduler: the rate after ", steps,
              " steps is ", lr);
        rates.push_back(lr);
    }
    // The momentum first: it is the one that may be refused, and then for all groups.
    if (momentum_) {
        const double momentum = (*momentum_)(steps);
        for (std::size_t g = 0; g < rates.size(); ++g)
            optimizer_->set_option(momentum_name(optimizer_->impl()), momentum, g);
    }
    for (std::size_t g = 0; g < rates.size(); ++g) optimizer_->impl().groups[g].lr() = rates[g];
}

LambdaLR::LambdaLR(Optimizer& optimizer, autograd::Callback<double(std::int64_t)> factor)
    : Scheduler(optimizer, [factor](double base, std::int64_t steps) { return base * factor(steps); }) {}

namespace {

void check_factor(const char* type, const char* option, double value) {
    check(std::isfinite(value) && value >= 0, ErrorKind::value, type, ": ", option, " is ", value,
          "; it must be finite and >= 0");
}

Schedule step_schedule(const StepLROptions& options) {
    check_factor("StepLR", "gamma", options.gamma);
    check(options.step_size > 0, ErrorKind::value, "StepLR: step_size is ", options.step_size,
          "; it must be positive");
    return [options](double base, std::int64_t steps) {
        return base * std::pow(options.gamma, double(steps / options.step_size));
    };
}

Schedule multi_step_schedule(const MultiStepLROptions& options) {
    check_factor("MultiStepLR", "gamma", options.gamma);
    std::vector<std::int64_t> milestones = options.milestones;
    std::sort(milestones.begin(), milestones.end());
    return [milestones, gamma = options.gamma](double base, std::int64_t steps) {
        const auto passed = std::upper_bound(milestones.begin(), milestones.end(), steps);
        return base * std::pow(gamma, double(passed - milestones.begin()));
    };
}

void check_share(const char* type, const char* option, double value, bool above_0 = false) {
    check(value >= 0 && value <= 1 && !(above_0 && value == 0), ErrorKind::value, type, ": ", option, " is ",
          value, above_0 ? "; it must be in (0, 1]" : "; it must be in [0, 1]");
}
void check_iterations(const char* type, std::int64_t total, std::int64_t least) {
    check(total >= least, ErrorKind::value, type, ": total_iters is ", total, "; it must be at least ",
          least);
}

Schedule constant_schedule(const ConstantLROptions& options) {
    check_share("ConstantLR", "factor", options.factor);
    check_iterations("ConstantLR", options.total_iters, 0);
    return [options](double base, std::int64_t steps) {
        return steps < options.total_iters ? base * options.factor : base;
    };
}

Schedule linear_schedule(const LinearLROptions& options) {
    check_share("LinearLR", "start_factor", options.start_factor, true);
    check_share("LinearLR", "end_factor", options.end_factor);
    check_iterations("LinearLR", options.total_iters, 1);
    return [options](double base, std::int64_t steps) {
        const double part = double(std::min(steps, options.total_iters)) / double(options.total_iters);
        return base * (options.start_factor + (options.end_factor - options.start_factor) * part);
    };
}

Schedule polynomial_schedule(const PolynomialLROptions& options) {
    check_factor("PolynomialLR", "power", options.power);
    check_iterations("PolynomialLR", options.total_iters, 1);
    return [options](double base, std::int64_t steps) {
        const double part = double(std::min(steps, options.total_iters)) / double(options.total_iters);
        return base * std::pow(1 - part, options.power);
    };
}

// Continues with the product so far; a scheduler is asked for the same or a later step, unless its optimizer
// has loaded an earlier state.
Schedule multiplicative_schedule(const autograd::Callback<double(std::int64_t)>& factor) {
    return [factor, product = 1.0, known = std::int64_t(0)](double base, std::int64_t steps) mutable {
        if (steps < known) {
            product = 1;
            known = 0;
        }
        for (; known < steps; ++known) product *= factor(known + 1);
        return base * product;
    };
}

Schedule exponential_schedule(double gamma) {
    check_factor("ExponentialLR", "gamma", gamma);
    return [gamma](double base, std::int64_t steps) { return base * std::pow(gamma, double(steps)); };
}

Schedule cosine_schedule(const CosineAnnealingLROptions& options) {
    check_factor("CosineAnnealingLR", "eta_min", options.eta_min);
    check(options.t_max > 0, ErrorKind::value, "CosineAnnealingLR: t_max is ", options.t_max,
          "; it must be positive");
    return [options](double base, std::int64_t steps) {
        const double angle = std::numbers::pi * double(steps) / double(options.t_max);
        return options.eta_min + (base - options.eta_min) * (1 + std::cos(angle)) / 2;
    };
}

Schedule warmup_schedule(const LinearWarmupOptions& options) {
    check(options.warmup_steps >= 0, ErrorKind::value, "LinearWarmup: warmup_steps is ", options.warmup_steps,
          "; it must not be negative");
    check(options.total_steps == 0 || options.total_steps > options.warmup_steps, ErrorKind::value,
          "LinearWarmup: total_steps is ", options.total_steps, " with ", options.warmup_steps,
          " warm-up steps; it must be larger, or 0");
    return [options](double base, std::int64_t steps) {
        if (steps < options.warmup_steps) return base * double(steps) / double(options.warmup_steps);
        if (options.total_steps == 0) return base;
        const double left =
            double(options.total_steps - steps) / double(options.total_steps - options.warmup_steps);
        return base * std::max(0.0, left);
    };
}

}  // namespace

StepLR::StepLR(Optimizer& optimizer, const StepLROptions& options)
    : Scheduler(optimizer, step_schedule(options)) {}

MultiStepLR::MultiStepLR(Optimizer& optimizer, const MultiStepLROptions& options)
    : Scheduler(optimizer, multi_step_schedule(options)) {}

ConstantLR::ConstantLR(Optimizer& optimizer, const ConstantLROptions& options)
    : Scheduler(optimizer, constant_schedule(options)) {}

LinearLR::LinearLR(Optimizer& optimizer, const LinearLROptions& options)
    : Scheduler(optimizer, linear_schedule(options)) {}

PolynomialLR::PolynomialLR(Optimizer& optimizer, const PolynomialLROptions& options)
    : Scheduler(optimizer, polynomial_schedule(options)) {}

MultiplicativeLR::MultiplicativeLR(Optimizer& optimizer, autograd::Callback<double(std::int64_t)> factor)
    : Scheduler(optimizer, multiplicative_schedule(factor)) {}

ExponentialLR::ExponentialLR(Optimizer& optimizer, double gamma)
    : Scheduler(optimizer, exponential_schedule(gamma)) {}

CosineAnnealingLR::CosineAnnealingLR(Optimizer& optimizer, const CosineAnnealingLROptions& options)
    : Scheduler(optimizer, cosine_schedule(options)) {}

LinearWarmup::LinearWarmup(Optimizer& optimizer, const LinearWarmupOptions& options)
    : Scheduler(optimizer, warmup_schedule(options)) {}

}  // namespace mezzo::optim
