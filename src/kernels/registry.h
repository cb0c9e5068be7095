// Registry of the backends in this process, by device type.
#pragma once

#include <span>

#include "core/backend.h"
#include "core/internal.h"
#include "kernels/kernel.h"

namespace mezzo {

struct DeviceTraceLibrary;  // core/device_trace.h
struct SelfChecks;          // kernels/self_check.h
struct StepKernels;         // kernels/step.h

// The parts of a backend. Only `memory` is required: an op without a kernel here runs its decomposition; if
// it has none either, the CPU's kernel runs on copies of the tensors, which is correct and slow.
struct BackendParts {
    const Backend* memory = nullptr;
    std::span<const KernelList* const> kernels = {};  // the lists of its files
    const StepKernels* step = nullptr;                // of optimizers and scaler
    const SelfChecks* self_checks = nullptr;    // self-checks; fast paths without one are used only if `on`
    const DeviceTraceLibrary* trace = nullptr;  // the times of the devices' own work, for profilers
};

// Registers a backend from outside the library. `parts` and everything that it points to must stay valid
// until the process ends. To be called before the first tensor of that type is made. Throws Error(backend) if
// the type has a backend already, the memory is missing, an entry is empty, or two kernels have the same
// attributes.
void register_backend(DeviceType type, const BackendParts& parts);

// The parts of a backend, or null in a process without it.
MEZZO_INTERNAL const BackendParts* backend_parts(DeviceType type);

// A backend's kernel for the attribute struct with this id, or null.
AnyKernel* find_kernel(const KernelId& id, DeviceType type);

}  // namespace mezzo
