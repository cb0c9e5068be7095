// Averages of a model's weights over the steps of its training: SWA and EMA.
#pragma once

#include <cstdint>
#include <optional>

#include "mezzo/autograd.h"
#include "mezzo/module.h"

#pragma GCC visibility push(default)

namespace mezzo::optim {

// The new average of a tensor from the average so far, the model's value, and how many values the average
// holds (at least 1). The first value is taken as it is.
using AverageFunction =
    autograd::Callback<Tensor(const Tensor& average, const Tensor& value, std::int64_t averaged)>;

// The mean of all values (stochastic weight averaging, Izmailov et al., arXiv 1803.05407).
AverageFunction equal_average();
// decay * average + (1 - decay) * value (exponential moving average, Polyak and Juditsky 1992). Error(value)
// unless decay is in [0, 1].
AverageFunction ema_average(double decay = 0.999);

struct AveragedModelOptions {
    AverageFunction average = equal_average();
    std::optional<Device> device = {};  // where the averages are kept; the model's if not given
    bool use_buffers = false;           // floating buffers are averaged, too; otherwise they are copied
};

// PyTorch's torch.optim.swa_utils.AveragedModel: the averages of a module's parameters, in float32 or wider.
// It keeps tensors, not a second module; copy_to() puts the averages into one.
class AveragedModel {
public:
    // Copies the values of the module. They do not count as averaged: the first update replaces them.
    // Error(device) for a device that is not there.
    explicit AveragedModel(const nn::Module& module, const AveragedModelOptions& options = {});

    // Adds the values of the module to the averages; call it after a step. Throws with nothing changed:
    // Error(value) unless the module has the same names and shapes, Error(shape) when the average function
    // returns another shape, and Error(state) inside a captured step.
    void update_parameters(const nn::Module& module);
    [[nodiscard]] std::int64_t averaged() const { return averaged_; }

    // Writes averages and buffers into a module for evaluation, converted to its dtypes and device.
    // Error(value), with nothing changed, unless the names and shapes are the same.
    void copy_to(nn::Module& module) const;
    // The averages and buffers as the module's state_dict() has them, not copied. The next
    // update_parameters() makes new tensors and leaves these as they are.
    [[nodiscard]] StateDict averages() const { return values_; }

    // Copies: "n_averaged", and the averages and buffers as "module.<name>".
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
