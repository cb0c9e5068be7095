// The table of the step kernels, and the scaler's update(). Nothing here waits for the device.
#include "cuda/optim/step.h"

#include "cuda/kernel.cuh"
#include "kernels/functor_step.h"

namespace mezzo::cuda {
namespace {

__global__ void update_scale_kernel(ScalerState* scaler, StepKernels::ScalerArgs args) {
    if (first_item() == 0) functors::advance(*scaler, args);
}

void update_scale(ScalerState* scaler, const StepKernels::ScalerArgs& args) {
    launch(update_scale_kernel, 1, 32, 0, scaler, args);
}

}  // namespace
}  // namespace mezzo::cuda

namespace mezzo {

extern const StepKernels cuda_step_kernels;
const StepKernels cuda_step_kernels{
    .statistics = cuda::step_statistics,
    .update = cuda::step_update,
    .scale_gradients = cuda::step_scale_gradients,
    .clip_by_value = cuda::step_clip_by_value,
    .flag_nonfinite = cuda::step_flag_nonfinite,
    .update_scale = cuda::update_scale,
};

}  // namespace mezzo
