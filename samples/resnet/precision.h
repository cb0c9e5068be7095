// Mixed precision according to the options: mezzo's autocast with a gradient scaler, or a preset O0 to O3.
#pragma once

#include <optional>

#include <mezzo/mezzo.h>

#include "resnet/options.h"

namespace resnet {

class Precision {
public:
    // Prepares model and optimizer, which must be in float32; the optimizer must outlive this object.
    Precision(const Options& options, mezzo::nn::ResNet& model, mezzo::optim::Optimizer& optimizer);
    // Returns the logits in float32.
    mezzo::Tensor forward(const mezzo::nn::ResNet& model, const mezzo::Tensor& images) const;
    // Runs backward, updates the parameters unless a gradient overflowed, and updates the loss scale.
    void step(const mezzo::Tensor& loss);

    bool scaled() const;  // whether there is a loss scale
    double scale();
    mezzo::StateDict state_dict() const;
    void load_state_dict(const mezzo::StateDict& state);

private:
    mezzo::amp::AutocastOptions autocast_;
    mezzo::optim::Optimizer& optimizer_;
    std::optional<mezzo::amp::GradScaler> scaler_;  // either scaler_ or preset_ is set
    std::optional<mezzo::amp::Handle> preset_;
};

}  // namespace resnet
