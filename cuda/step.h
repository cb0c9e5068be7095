// The optimizer-step kernels that have a file of their own; step.cu makes the table of them all.
#pragma once

#include "ops/kernels.h"

namespace mezzo::cuda {

void step_update(std::span<const ParamRef> params, const StepArgs& args, const StepState* state);

void step_check_finite(std::span<const ParamRef> params, const ScalerState* scaler, bool multiply,
                       StepState* state, float* per_param_flags);
void step_grad_norm(std::span<const ParamRef> params, float* norm);
void step_clip_by_norm(std::span<const ParamRef> params, const float* norm, double max_norm);
void step_clip_by_value(std::span<const ParamRef> params, double limit);

}  // namespace mezzo::cuda
