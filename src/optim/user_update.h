// The step of an optimizer that is written in ops.
#pragma once

#include "optim/optimizer.h"

namespace mezzo::optim {

// Calls the optimizer's update() for every parameter of the list with gradient * scale. Stores the results,
// unless `conditional` and StepState says found_inf, and counts the step. Does not wait for the device.
void run_user_update(OptimizerImpl& optimizer, const GradientList& plan, bool conditional,
                     const GradientScale& scale);

// Throws Error(state) while the update() of this optimizer runs. `call` names the member function.
void refuse_in_update(const char* call, const OptimizerImpl& optimizer);

}  // namespace mezzo::optim
