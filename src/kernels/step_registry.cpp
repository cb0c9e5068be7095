// Which device types have optimizer step kernels.
#include "kernels/step.h"

namespace mezzo {

extern const StepKernels cpu_step_kernels;
#ifdef MEZZO_HAVE_CUDA
extern const StepKernels cuda_step_kernels;
#endif

const StepKernels* step_kernels(DeviceType type) {
    if (type == DeviceType::cpu) return &cpu_step_kernels;
#ifdef MEZZO_HAVE_CUDA
    if (type == DeviceType::cuda) return &cuda_step_kernels;
#endif
    return nullptr;
}

}  // namespace mezzo
