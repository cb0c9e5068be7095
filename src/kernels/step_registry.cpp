// Which device types have optimizer step kernels.
#include "kernels/registry.h"
#include "kernels/step.h"

namespace mezzo {

const StepKernels* step_kernels(DeviceType type) {
    const BackendParts* parts = backend_parts(type);
    return parts != nullptr ? parts->step : nullptr;
}

}  // namespace mezzo
