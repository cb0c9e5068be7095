// Learning-rate schedules that count applied steps, and one that follows a metric.
//
//   optim::LinearWarmup schedule(optimizer, {.warmup_steps = 100, .total_steps = 10000});
//   optimizer.step();
//   schedule.step();  // after each step of the optimizer
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "mezzo/autograd.h"
#include "mezzo/module.h"

#pragma GCC visibility push(default)

namespace mezzo::optim {

class Optimizer;

// The learning rate as a function of a group's own rate and of the steps applied so far.
using Schedule = autograd::Callback<double(double base_lr, std::int64_t applied_steps)>;

// Base class of schedules: sets the learning rate of every group to schedule(base,
// optimizer.applied_steps()): in the constructor, and at each step(). Skipped steps do not advance it. It has
// no state: after loading the optimizer, step() continues from its steps. The optimizer must outlive it. The
// constructors here and below throw what step() throws, and Error(value) for arguments out of the stated
// ranges.
class Scheduler {
public:
    Scheduler(Optimizer& optimizer, Schedule schedule);
    // Call after optimizer.step() or scaler.step(). Throws, with nothing changed, Error(value) for a rate
    // that is negative, infinite or NaN, and Error(state) inside a captured step, and for a scheduler that
    // another one of the optimizer has replaced: both compute the rate from the group's own, so the last one
    // would win. SequentialLR and ChainedScheduler combine schedulers.
    void step();
    [[nodiscard]] const Schedule& schedule() const { return schedule_; }

protected:
    // If `momentum` is given, also sets the momentum of every group to momentum(applied steps): the option
    // "momentum" or, for an optimizer without it, "beta1". Error(value) for an optimizer that has neither.
    using Momentum = autograd::Callback<double(std::int64_t)>;
    Scheduler(Optimizer& optimizer, Schedule schedule, std::optional<Momentum> momentum);

private:
    friend Schedule schedule_of(const char* type, const Scheduler& scheduler);
    void set_rates();
    Optimizer* optimizer_;
    std::uint64_t id_;  // of this scheduler and its copies
    Schedule schedule_;
    std::optional<Momentum> momentum_;
};

// base * factor(steps).
class LambdaLR : public Scheduler {
public:
    LambdaLR(Optimizer& optimizer, autograd::Callback<double(std::int64_t)> factor);
};

struct StepLROptions {
    std::int64_t step_size = 1;  // > 0
    double gamma = 0.1;          // >= 0
};
// base * gamma^floor(steps / step_size).
class StepLR : public Scheduler {
public:
    StepLR(Optimizer& optimizer, const StepLROptions& options);
};

struct MultiStepLROptions {
    std::vector<std::int64_t> milestones = {};  // in any order; one that occurs twice counts twice
    double gamma = 0.1;                         // >= 0
};
// base * gamma^(number of milestones <= steps).
class MultiStepLR : public Scheduler {
public:
    MultiStepLR(Optimizer& optimizer, const MultiStepLROptions& options);
};

struct ConstantLROptions {
    double factor = 1.0 / 3;       // in [0, 1]
    std::int64_t total_iters = 5;  // >= 0
};
// base * factor in the first total_iters steps, then base.
class ConstantLR : public Scheduler {
public:
    explicit ConstantLR(Optimizer& optimizer, const ConstantLROptions& options = {});
};

struct LinearLROptions {
    double start_factor = 1.0 / 3;  // in (0, 1]
    double end_factor = 1;          // in [0, 1]
    std::int64_t total_iters = 5;   // > 0
};
// base times a factor that goes from start_factor to end_factor in total_iters steps, and stays there.
class LinearLR : public Scheduler {
public:
    explicit LinearLR(Optimizer& optimizer, const LinearLROptions& options = {});
};

struct PolynomialLROptions {
    std::int64_t total_iters = 5;  // > 0
    double power = 1;              // >= 0
};
// base * (1 - min(steps, total_iters) / total_iters)^power.
class PolynomialLR : public Scheduler {
public:
    explicit PolynomialLR(Optimizer& optimizer, const PolynomialLROptions& options = {});
};

// base * factor(1) * factor(2) * … * factor(steps). factor() must always return the same number for the same
// step, because a resumed run calls it for all steps before.
class MultiplicativeLR : public Scheduler {
public:
    MultiplicativeLR(Optimizer& optimizer, autograd::Callback<double(std::int64_t)> factor);
};

// base * gamma^steps, with gamma >= 0.
class ExponentialLR : public Scheduler {
public:
    ExponentialLR(Optimizer& optimizer, double gamma);
};

struct CosineAnnealingLROptions {
    std::int64_t t_max = 1;  // > 0: steps from the base rate down to eta_min; the rate rises again after that
    double eta_min = 0;      // >= 0
};
// eta_min + (base - eta_min) (1 + cos(pi steps / t_max)) / 2 (Loshchilov and Hutter, arXiv 1608.03983).
class CosineAnnealingLR : public Scheduler {
public:
    CosineAnnealingLR(Optimizer& optimizer, const CosineAnnealingLROptions& options);
};

struct LinearWarmupOptions {
    std::int64_t warmup_steps = 0;  // >= 0: the rate is base * steps / warmup_steps until then
    // > warmup_steps: after the warm-up the rate decays linearly, and is 0 from this step on. 0: it stays.
    std::int64_t total_steps = 0;
};
// Linear warm-up and linear decay, the schedule of BERT's training and fine-tuning.
class LinearWarmup : public Scheduler {
public:
    LinearWarmup(Optimizer& optimizer, const LinearWarmupOptions& options);
};

struct CosineAnnealingWarmRestartsOptions {
    std::int64_t t_0 = 1;     // > 0: steps of the first cycle
    std::int64_t t_mult = 1;  // > 0: each cycle is t_mult times as long as the one before
    double eta_min = 0;       // >= 0
};
// SGDR (Loshchilov and Hutter, arXiv 1608.03983): a cosine from the base rate to eta_min in each cycle.
class CosineAnnealingWarmRestarts : public Scheduler {
public:
    CosineAnnealingWarmRestarts(Optimizer& optimizer, const CosineAnnealingWarmRestartsOptions& options);
};

enum class Anneal { cosine, linear };
struct OneCycleLROptions {
    double max_lr = 0;             // > 0
    std::int64_t total_steps = 0;  // > 1
    double pct_start = 0.3;        // in [0, 1]: the part of the steps in which the rate rises
    Anneal anneal = Anneal::cosine;
    bool cycle_momentum = true;  // from max_momentum to base_momentum while the rate rises, and back
    double base_momentum = 0.85, max_momentum = 0.95;  // in [0, 1)
    double div_factor = 25;                            // > 0: the rate starts at max_lr / div_factor
    double final_div_factor = 1e4;  // > 0: the rate ends at max_lr / div_factor / final_div_factor
    // true: the rate falls back to its start in as many steps as it rose, and then to its end in the rest.
    // false: it falls to its end in all steps after the rise.
    bool three_phase = false;
};
// The 1cycle policy (Smith and Topin, arXiv 1708.07120), as PyTorch has it. The groups' own rates are
// ignored. Momentum is the option "momentum" of the optimizer or, if it has none, "beta1". After total_steps
// steps the last rate stays; step() throws Error(value) after more. A captured step whose optimizer gets
// another momentum runs eagerly and is captured again: turn cycle_momentum off there.
class OneCycleLR : public Scheduler {
public:
    OneCycleLR(Optimizer& optimizer, const OneCycleLROptions& options);
};

enum class CycleMode {
    triangular,   // all cycles have the same height
    triangular2,  // each cycle is half as high as the one before
    exp_range,    // the height is multiplied by gamma in each step
};
struct CyclicLROptions {
    double base_lr = 0, max_lr = 0;                   // >= 0; the rate begins at base_lr
    std::int64_t step_size_up = 2000;                 // > 0: steps from base_lr to max_lr
    std::optional<std::int64_t> step_size_down = {};  // > 0: steps back; by default step_size_up
    CycleMode mode = CycleMode::triangular;
    double gamma = 1;  // >= 0; of exp_range
    // Replaces `mode`: the height of a cycle as a factor, from the number of the cycle, which begins at 1, or
    // from the number of steps.
    std::optional<autograd::Callback<double(double)>> scale_fn = {};
    enum class ScaleMode { cycle, iterations };
    ScaleMode scale_mode = ScaleMode::cycle;  // the argument of scale_fn
    bool cycle_momentum = true;               // from max_momentum to base_momentum while the rate rises
    double base_momentum = 0.8, max_momentum = 0.9;  // in [0, 1)
};
// Cyclical learning rates (Smith, arXiv 1506.01186). The groups' own rates are ignored; momentum is that of
// OneCycleLR.
class CyclicLR : public Scheduler {
public:
    CyclicLR(Optimizer& optimizer, const CyclicLROptions& options);
};

struct SWALROptions {
    double swa_lr = 0;               // >= 0: the rate at the end
    std::int64_t start = 0;          // >= 0: the steps before the first averaged one
    std::int64_t anneal_steps = 10;  // >= 0: steps from the rate at `start` to swa_lr
    Anneal anneal = Anneal::cosine;
};
// The schedule of stochastic weight averaging (Izmailov et al., arXiv 1803.05407): after `start` steps the
// rate goes to swa_lr and stays there. Until then it is that of `before`, or the group's own. The weights are
// averaged by AveragedModel (mezzo/averaged_model.h). Error(value) for a `before` that changes the momentum.
class SWALR : public Scheduler {
public:
    SWALR(Optimizer& optimizer, const SWALROptions& options);
    SWALR(Optimizer& optimizer, const Scheduler& before, const SWALROptions& options);
};

// One schedule after another: the first until milestones[0] steps have been applied, and so on; each counts
// steps from its own start. There must be one milestone less than schedulers; milestones must be positive and
// rise. The schedulers need not be stepped themselves. Error(value) for one that changes the momentum.
class SequentialLR : public Scheduler {
public:
    SequentialLR(Optimizer& optimizer, const std::vector<Scheduler>& schedulers,
                 std::vector<std::int64_t> milestones);
};

// Composition of schedules: the rate of each one is the base rate of the next. If each schedule is a factor
// times the base rate, the rates are PyTorch's. Error(value) for an empty list, and for a scheduler that
// changes the momentum.
class ChainedScheduler : public Scheduler {
public:
    ChainedScheduler(Optimizer& optimizer, const std::vector<Scheduler>& schedulers);
};

struct ReduceLROnPlateauOptions {
    enum class Mode { min, max };
    enum class Threshold { relative, absolute };
    Mode mode = Mode::min;       // whether a lower or a higher metric is better
    double factor = 0.1;         // in [0, 1)
    std::int64_t patience = 10;  // >= 0: the rates are reduced when more metrics in a row are no better
    // >= 0: a metric is better if it is beyond best * (1 - threshold), or best * (1 + threshold) in
    // Mode::max; with Threshold::absolute beyond best - threshold, or best + threshold.
    double threshold = 1e-4;
    Threshold threshold_mode = Threshold::relative;
    std::int64_t cooldown = 0;  // >= 0: so many metrics after a reduction do not count against patience
    double min_lr = 0;          // >= 0: no rate is reduced below it
    double eps = 1e-8;          // >= 0: a rate that would change by no more than this stays
};
// Multiplies the learning rates by `factor` when a metric has stopped improving. The optimizer must outlive
// it.
class ReduceLROnPlateau {
public:
    // Error(value) for options out of their range.
    ReduceLROnPlateau(Optimizer& optimizer, const ReduceLROnPlateauOptions& options = {});
    // Call when the metric is known, such as once per epoch. NaN is no improvement. Error(state) inside a
    // captured step.
    void step(double metric);

    // best, bad_metrics and cooldown as 0-dim tensors; the rates are in the optimizer's state_dict().
    [[nodiscard]] StateDict state_dict() const;
    // Throws, with nothing changed, Error(value) for names that are missing or unknown, counts that are no
    // whole numbers and a best that is NaN, and Error(shape) for an entry that is not one number.
    void load_state_dict(const StateDict& state);

private:
    [[nodiscard]] bool better(double metric) const;
    void reduce();
    Optimizer* optimizer_;
    ReduceLROnPlateauOptions options_;
    double best_;
    std::int64_t bad_metrics_ = 0, cooldown_ = 0;
};

}  // namespace mezzo::optim

#pragma GCC visibility pop
