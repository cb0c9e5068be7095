// AveragedModel: averages of a model's weights over training steps (SWA and EMA).
//
//   optim::AveragedModel average(net, {.average = optim::ema_average(0.999)});
//   optimizer.step();
//   average.update_parameters(net);  // after each step
//   average.copy_to(net);            // after the last one
#pragma once

#include <cstdint>
#include <optional>

#include "mezzo/autograd.h"
#include "mezzo/module.h"

#pragma GCC visibility push(default)

namespace mezzo::optim {

// Computes the new average of a tensor from the average so far, the model's value, and the number of values
// in the average (at least 1). The first value is copied without a call.
using AverageFunction =
    autograd::Callback<Tensor(const Tensor& average, const Tensor& value, std::int64_t averaged)>;

// The mean of all values (stochastic weight averaging, Izmailov et al., arXiv 1803.05407).
AverageFunction equal_average();
// decay * average + (1 - decay) * value (exponential moving average, Polyak and Juditsky 1992). Error(value)
// unless decay is in [0, 1].
AverageFunction ema_average(double decay = 0.999);

struct AveragedModelOptions {
    AverageFunction average = equal_average();
    std::optional<Device> device = {};  // device of the averages; none: the model's
    bool use_buffers = false;           // floating buffers are averaged, too; otherwise they are copied
};

// Averages of a module's parameters in float32 or wider, as PyTorch's torch.optim.swa_utils.AveragedModel. It
// stores tensors, not a second module; copy_to() writes the averages into a module.
class AveragedModel {
public:
    // Copies the values of the module. They do not count as averaged: the first update replaces them. Throws
    // Error(device) for a device that does not exist.
    explicit AveragedModel(const nn::Module& module, const AveragedModelOptions& options = {});

    // Adds the values of the module to the averages; call it after a step. Throws with nothing changed:
    // Error(value) unless the module has the same names and shapes, Error(shape) when the average function
    // returns another shape, and Error(state) inside a captured step.
    void update_parameters(const nn::Module& module);
    [[nodiscard]] std::int64_t averaged() const { return averaged_; }

    // Writes averages and buffers into a module for evaluation, converted to its dtypes and device.
    // Error(value), with nothing changed, unless the names and shapes are the same.
    void copy_to(nn::Module& module) const;
    // The averages and buffers, with the names of the module's state_dict(), not copied. The next
    // update_parameters() makes new tensors and does not change these.
    [[nodiscard]] StateDict averages() const { return values_; }

    // Copies of the state: "n_averaged", and the averages and buffers as "module.<name>".
    [[nodiscard]] StateDict state_dict() const;
    // Throws with nothing changed: Error(value) when a name is missing or unknown, or "n_averaged" is not a
    // whole number; Error(shape) when a shape differs.
    void load_state_dict(const StateDict& state);

private:
    AveragedModelOptions options_;
    StateDict values_;
    std::int64_t averaged_ = 0;
    std::size_t parameters_ = 0;  // of values_; buffers follow
};

}  // namespace mezzo::optim

#pragma GCC visibility pop
