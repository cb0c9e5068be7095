// The optimizer step of a device that has no step kernels.
#pragma once

#include "kernels/step.h"

namespace mezzo {

// The CPU's step kernels on copies in host memory: what they read is copied from the device, what they write
// is copied back. They wait for the device. The result is valid on the calling thread until it calls this
// function for another device.
const StepKernels& copied_step_kernels(Device device);

}  // namespace mezzo
