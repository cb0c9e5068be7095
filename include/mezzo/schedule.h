// Learning-rate schedules that count applied steps, and one that follows a metric.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "mezzo/autograd.h"
#include "mezzo/module.h"

namespace mezzo::optim {

class Optimizer;

// The learning rate as a function of a group's own rate and of the steps applied so far.
using Schedule = autograd::Callback<double(double base_lr, std::int64_t applied_steps)>;

// Sets the learning rate of every group to schedule(base, optimizer.applied_steps()): when made, and at each
// step(). Skipped steps do not advance it. It keeps no state: after loading the optimizer, step() continues
// where it was. The optimizer must outlive it.
class Scheduler {
public:
    Scheduler(Optimizer& optimizer, Schedule schedule);
    // Call after optimizer.step() or scaler.step(). Throws Error(value), with nothing changed, for a rate
    // that is negative, infinite or NaN.
    void step();
    [[nodiscard]] const Schedule& schedule() const { return schedule_; }

protected:
    // Sets the momentum of every group to momentum(applied steps), too: the option "momentum", or "beta1".
    // Throws for an optimizer that has neither.
    using Momentum = autograd::Callback<double(std::int64_t)>;
    Scheduler(Optimizer& optimizer, Schedule schedule, std::optional<Momentum> momentum);

private:
    friend Schedule schedule_of(const char* type, const Scheduler& scheduler);
    Optimizer* optimizer_;
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
    double gamma = 0.1;
};
// base * gamma^floor(steps / step_size).
class StepLR : public Scheduler {
public:
    StepLR(Optimizer& optimizer, const StepLROptions& options);
};

// base * gamma^steps.
class ExponentialLR : public Scheduler {
public:
    ExponentialLR(Optimizer& optimizer, double gamma);
};

struct CosineAnnealingLROptions {
    std::int64_t t_max = 1;  // > 0: steps from the base rate down to eta_min; it rises again after that
    double eta_min = 0;
};
// eta_min + (base - eta_min) (1 + cos(pi steps / t_max)) / 2 (Loshchilov and Hutter, arXiv 1608.03983).
class CosineAnnealingLR : public Scheduler {
public:
    CosineAnnealingLR(Optimizer& optimizer, const CosineAnnealingLROptions& options);
};

struct LinearWarmupOptions {
    std::int64_t warmup_steps = 0;  // >= 0: base * steps / warmup_steps until then
    std::int64_t total_steps = 0;   // 0: constant after the warm-up; else linear decay that reaches 0 here
};
// The schedule BERT is trained and fine-tuned with.
class LinearWarmup : public Scheduler {
public:
    LinearWarmup(Optimizer& optimizer, const LinearWarmupOptions& options);
};

struct CosineAnnealingWarmRestartsOptions {
    std::int64_t t_0 = 1;     // > 0: steps of the first cycle
    std::int64_t t_mult = 1;  // > 0: each cycle is so many times as long as the one before
    double eta_min = 0;
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
    double base_momentum = 0.85, max_momentum = 0.95;
    double div_factor = 25;         // the rate starts at max_lr / div_factor
    double final_div_factor = 1e4;  // and ends at a final_div_factor-th of that
    bool three_phase = false;       // back to where it started first, in as many steps as it rose
};
// The 1cycle policy (Smith and Topin, arXiv 1708.07120), as PyTorch has it. It takes the place of the groups'
// own rates. Momentum is the option "momentum" of the optimizer, or "beta1". Throws at a step beyond
// total_steps. In a captured step another momentum means that the step runs eagerly and is captured anew:
// turn cycle_momentum off there.
class OneCycleLR : public Scheduler {
public:
    OneCycleLR(Optimizer& optimizer, const OneCycleLROptions& options);
};

// One schedule after another: the first until milestones[0] steps, and so on; each counts from its own start.
// Milestones must rise, one less than there are schedulers. The schedulers need not be stepped themselves.
class SequentialLR : public Scheduler {
public:
    SequentialLR(Optimizer& optimizer, const std::vector<Scheduler>& schedulers,
                 std::vector<std::int64_t> milestones);
};

// All schedules at once: each scales what the one before gives. With schedules that are a factor times the
// base rate these are PyTorch's numbers.
class ChainedScheduler : public Scheduler {
public:
    ChainedScheduler(Optimizer& optimizer, const std::vector<Scheduler>& schedulers);
};

struct ReduceLROnPlateauOptions {
    enum class Mode { min, max };
    enum class Threshold { relative, absolute };
    Mode mode = Mode::min;       // whether a lower or a higher metric is better
    double factor = 0.1;         // in [0, 1)
    std::int64_t patience = 10;  // metrics in a row that may be no better
    double threshold = 1e-4;     // by which a better one must be better
    Threshold threshold_mode = Threshold::relative;
    std::int64_t cooldown = 0;  // metrics after a reduction that do not count
    double min_lr = 0;
    double eps = 1e-8;  // a smaller reduction is not made
};
// Multiplies the learning rates by a factor when a metric has stopped improving. The optimizer must outlive
// it.
class ReduceLROnPlateau {
public:
    ReduceLROnPlateau(Optimizer& optimizer, const ReduceLROnPlateauOptions& options = {});
    // Call when the metric is known, such as once per epoch. NaN is no improvement.
    void step(double metric);

    // best, bad_metrics and cooldown as 0-dim tensors; the rates are in the optimizer's state.
    [[nodiscard]] StateDict state_dict() const;
    // Throws, with nothing changed, for names that are missing or unknown.
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
