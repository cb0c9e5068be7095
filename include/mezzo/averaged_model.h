// Averages of a model's weights over the steps of its training: SWA and EMA.
#pragma once

#include <cstdint>
#include <optional>

#include "mezzo/autograd.h"
#include "mezzo/module.h"

namespace mezzo::optim {

// The new average of a tensor from the average so far, the model's value, and how many values the average
// holds (at least 1). The first value is taken as it is.
using AverageFunction =
    autograd::Callback<Tensor(const Tensor& average, const Tensor& value, std::int64_t averaged)>;

// The mean of all values (stochastic weight averaging, Izmailov et al., arXiv 1803.05407).
AverageFunction equal_average();
// decay * average + (1 - decay) * value (exponential moving average, Polyak and Juditsky 1992); decay in
// [0, 1].
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
    // Starts with the values of the module, none of which counts as averaged.
    explicit AveragedModel(const nn::Module& module, const AveragedModelOptions& options = {});

    // Call after a step: takes the values of the module into the averages. It must have the same names and
    // shapes; otherwise throws Error(value), with nothing changed. Not in a captured step.
    void update_parameters(const nn::Module& module);
    [[nodiscard]] std::int64_t averaged() const { return averaged_; }

    // Writes averages and buffers into a module for evaluation, converted to its dtypes and device.
    void copy_to(nn::Module& module) const;
    // By the module's names; they share the elements.
    [[nodiscard]] StateDict averages() const { return values_; }

    // n_averaged, and the averages as "module.<name>"; copies.
    [[nodiscard]] StateDict state_dict() const;
    // Throws, with nothing changed, when a name is missing or unknown, or a shape differs.
    void load_state_dict(const StateDict& state);

private:
    AveragedModelOptions options_;
    StateDict values_;
    std::int64_t averaged_ = 0;
    std::size_t parameters_ = 0;  // of values_; buffers follow
};

}  // namespace mezzo::optim
