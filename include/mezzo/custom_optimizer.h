// Optimizers written in ops: a user derives from CustomOptimizer, says the names of options and state, and
// writes the update of one parameter. Everything else an optimizer does works by itself: parameter groups,
// learning rates and schedules, state_dict(), master weights, GradScaler with steps that are skipped on the
// device, clipping, captured steps.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "mezzo/optim.h"

namespace mezzo::optim {

using NamedOptions = std::vector<std::pair<std::string, double>>;

// One parameter in one step. The tensors are copies: the update assigns to them or writes in place, and the
// optimizer takes them over unless a GradScaler skips the step.
class ParameterUpdate {
public:
    Tensor value;  // of the parameter: float32 or float64, the master of a 16-bit parameter if there is one
    Tensor grad;   // like value; unscaled and clipped, and negated if the option "maximize" is 1
    // float64 of shape {} on the parameter's device: the learning rate, and the number of this update, 1 at
    // first. As tensors, because a captured step repeats the work with other numbers; of these every update
    // has its own, and powers of them are exact to double.
    Tensor lr, step;

    // A state by its name: like value, zeros before the first update. Throws for a name that the optimizer
    // has not declared.
    [[nodiscard]] Tensor& state(const std::string& name);
    // An option of the parameter's group. "lr" is refused: see above.
    [[nodiscard]] double option(const std::string& name) const;

private:
    friend struct UpdateAccess;
    ParameterUpdate() = default;
    const OptimizerImpl* optimizer_ = nullptr;
    std::size_t group_ = 0;
    Tensors states_;
};

// Parameters that share options; those not named have the optimizer's defaults.
struct CustomGroup {
    Tensors params = {};
    NamedOptions options = {};
    StateDict named_params = {};
};

// What a type of optimizer is called and has. The type's name is part of state_dict(). Options are numbers,
// "lr" among them with its default; flags are 0 or 1. State has the shape of the parameter.
struct CustomType {
    std::string name;
    NamedOptions options;
    std::vector<std::string> state = {};
};

class CustomOptimizer : public Optimizer {
public:
    // Throws Error(value) for names that are empty, contain '.' or occur twice, a missing "lr", options that
    // the type does not have or that are not finite, and whatever other optimizers refuse in parameters.
    CustomOptimizer(const CustomType& type, const std::vector<CustomGroup>& groups);

protected:
    // Computes the new value and state of one parameter with ops. Runs without recording gradients and
    // without autocast, once per parameter with a gradient; all parameters are taken over when the last one
    // is computed, so that an exception leaves the optimizer and the parameters as they were. Must not wait
    // for the device in a captured step. What it keeps in members is not part of state_dict(), and not
    // restored when the step is skipped.
    virtual void update(ParameterUpdate& p) = 0;

private:
    friend struct UpdateAccess;
};

// LAMB (You et al., arXiv 1904.00962, version 5): Adam's moments with bias correction, u = m / (sqrt(v) + eps)
// + weight_decay w; w -= lr |w| / |u| u, with the norms of the whole parameter; the ratio is 1 where a norm
// is 0.
struct LAMBOptions {
    double lr = 1e-3;
    double beta1 = 0.9, beta2 = 0.999;  // in [0, 1)
    double eps = 1e-6;
    double weight_decay = 1e-2;
    bool maximize = false;
};
struct LAMBGroup {
    Tensors params = {};
    LAMBOptions options = {};
    StateDict named_params = {};
};
class LAMB : public CustomOptimizer {
public:
    explicit LAMB(const Tensors& params, const LAMBOptions& options = {});
    explicit LAMB(const StateDict& named_params, const LAMBOptions& options = {});
    explicit LAMB(const std::vector<LAMBGroup>& groups);

protected:
    void update(ParameterUpdate& p) override;
};

}  // namespace mezzo::optim
