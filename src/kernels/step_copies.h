// Fallback of the optimizer step for a device without step kernels.
#pragma once

#include "kernels/step.h"

namespace mezzo {

// Returns the CPU's step kernels, run on copies in host memory: inputs are copied from the device, results
// are copied back. They wait for the device. The returned reference is valid on the calling thread until it
// calls this function for another device.
const StepKernels& copied_step_kernels(Device device);

}  // namespace mezzo
