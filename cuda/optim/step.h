// The optimizer-step kernels; step.cu makes the table of them all.
#pragma once

#include "kernels/step.h"

namespace mezzo::cuda {

void step_update(std::span<const ParamRef> params, std::span<const StepArgs> groups,
                 const GradientFactor& factor, const float* found_inf, StepState* counts);

void step_statistics(std::span<const ParamRef> params, const StepKernels::Statistics& wanted);
void step_scale_gradients(std::span<const ParamRef> params, const GradientFactor& factor);
void step_clip_by_value(std::span<const ParamRef> params, double limit);
void step_flag_nonfinite(std::span<const ParamRef> params, float* flags);

}  // namespace mezzo::cuda
