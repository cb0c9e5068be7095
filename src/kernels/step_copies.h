// The optimizer step of a device that has no kernels for it.
#pragma once

#include "kernels/step.h"

namespace mezzo {

// The CPU's step kernels on copies: what they read comes from the device's memory, what they write goes back.
// They wait for the device. For calls of this thread until it asks for another device's.
const StepKernels& copied_step_kernels(Device device);

}  // namespace mezzo
