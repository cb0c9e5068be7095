// CustomOptimizer: base class for optimizers written in ops. A derived class lists options and state, and
// defines the update of one parameter. The base class provides parameter groups, learning rates and
// schedules, state_dict(), master weights, GradScaler with steps that are skipped on the device, clipping and
// captured steps.
//
//   struct Descent : optim::CustomOptimizer {
//       explicit Descent(const Tensors& params)
//           : CustomOptimizer({.name = "Descent", .options = {{"lr", 0.1}}}, {{.params = params}}) {}
//       void update(optim::ParameterUpdate& p) override { p.value = p.value - p.lr * p.grad; }
//   };
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mezzo/optim.h"

#pragma GCC visibility push(default)

namespace mezzo::optim {

using NamedOptions = std::vector<std::pair<std::string, double>>;

// One parameter in one step. The tensors are copies: update() assigns to `value` and the state or writes to
// them in place, and the optimizer stores them unless a GradScaler skips the step.
class ParameterUpdate {
public:
    // The value of the parameter, or of its master if it has one: float64 for a float64 parameter, otherwise
    // float32.
    Tensor value;
    Tensor grad;  // in value's dtype; unscaled and clipped, and negated if the option "maximize" is 1
    // The learning rate, and the number of this update, which begins at 1: float64 of shape {} on the
    // parameter's device. They are tensors because a replay of a captured step runs with other numbers, and
    // float64 so that powers such as beta1^step are exact to double precision.
    Tensor lr, step;

    // A state by its name, in value's dtype and of value's shape or that of CustomType::state_shape; zeros
    // before the first update. Throws Error(value) for a name that CustomType::state does not list.
    [[nodiscard]] Tensor& state(std::string_view name);
    // An option of the parameter's group. Error(value) for a name that CustomType::options does not list, and
    // for "lr", which is the tensor above.
    [[nodiscard]] double option(std::string_view name) const;

private:
    friend struct UpdateAccess;
    ParameterUpdate() = default;
    const OptimizerImpl* optimizer_ = nullptr;
    std::size_t group_ = 0;
    Tensors states_;
};

// Parameters that share options. Options that are not listed have the defaults of CustomType.
struct CustomGroup {
    Tensors params = {};
    NamedOptions options = {};
    StateDict named_params = {};
};

// The description of a type of optimizer.
struct CustomType {
    std::string name;      // state_dict() holds a hash of it, so that another type's state is refused
    NamedOptions options;  // with their defaults; "lr" must be among them
    std::vector<std::string> state = {};  // tensors for each parameter
    // Options that must be >= 0 ("lr" always must), that must be in [0, 1), and flags, which must be 0 or 1
    // ("maximize" always must).
    std::vector<std::string> not_negative = {}, below_one = {}, flags = {};
    // The shape of a state, from its name and the parameter's shape; none: all have the parameter's shape.
    std::optional<autograd::Callback<Shape(const std::string& state, const Shape& parameter)>> state_shape =
        {};
};

class CustomOptimizer : public Optimizer {
public:
    // Throws Error(value) for a type without a name; for names of options or state that are empty, contain
    // '.', occur twice, or are "master", "size" or "initial_lr"; for a missing "lr"; for options that the
    // type does not have, that are not finite or out of their range, an "lr" below 0 and a "maximize" that is
    // neither 0 nor 1; and for the parameters that other optimizers refuse.
    CustomOptimizer(const CustomType& type, const std::vector<CustomGroup>& groups);

protected:
    // Takes over an optimizer that the library has made.
    explicit CustomOptimizer(OptimizerImpl* impl);

    // Computes the new value and state of one parameter with ops. It is called once per parameter with a
    // gradient, inside NoGrad and without autocast. The results are stored after all parameters have been
    // computed, so that an exception in update() changes neither optimizer nor parameters. step() throws for
    // a result that is undefined (Error(value)), has another shape than before (Error(shape)), is not
    // floating (Error(dtype)) or is on another device (Error(device)). In a captured step update() must not
    // wait for the device. Inside update(), step() and load_state_dict() of the same optimizer throw
    // Error(state). Members of the derived class are not part of state_dict(), unless it overrides
    // saved_state() and restore_state(), and not restored when the step is skipped.
    virtual void update(ParameterUpdate& p) = 0;

private:
    friend struct UpdateAccess;
};

}  // namespace mezzo::optim

#pragma GCC visibility pop
