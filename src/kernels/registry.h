// The one registry of backends: what each device type has in this process.
#pragma once

#include <span>

#include "core/backend.h"
#include "kernels/kernel.h"

namespace mezzo {

struct StepKernels;  // kernels/step.h

// What a backend consists of. Only memory and copies are a must: an op without a kernel here runs its
// decomposition, and without one the CPU's kernel on copies of the tensors, which is correct and slow.
struct BackendParts {
    const Backend* memory = nullptr;
    std::span<const KernelList* const> kernels = {};  // the lists of its files
    const StepKernels* step = nullptr;                // of optimizers and scaler
};

// Makes a backend outside the library known; `parts` and all that it points to stay valid for the process'
// life. To be called before the first tensor of that type. Error(backend): the type has a backend already, the
// memory is missing, or two kernels are for one op.
void register_backend(DeviceType type, const BackendParts& parts);

// The parts of a backend, or null in a process without it.
const BackendParts* backend_parts(DeviceType type);

// A backend's kernel of that name and attribute struct, or null.
AnyKernel* find_kernel(const KernelId& id, DeviceType type);

}  // namespace mezzo
