// Optimizer and scaler bookkeeping on the device, and the table of all step kernels. Nothing here waits for
// the device.
#include "cuda/elements.cuh"
#include "cuda/step.h"

namespace mezzo::cuda {
namespace {

constexpr int counter_table = 480;  // 3,848 bytes; kernel arguments are limited to 4 KiB
constexpr unsigned counter_block = 128;

struct CounterTable {
    int count;
    float* step[counter_table];
};

// Counts an applied step for every parameter of the table; the last table's launch also counts for the
// optimizer.
__global__ void finish_step_kernel(CounterTable table, StepState* state, bool last) {
    const bool applied = state->found_inf == 0;
    for (std::int64_t i = first_item(); applied && i < table.count; i += item_step()) *table.step[i] += 1;
    if (!last || first_item() != 0) return;
    if (applied)
        state->applied += 1;
    else
        state->skipped += 1;
}

__global__ void begin_step_kernel(StepState* state, const ScalerState* scaler, bool unscale) {
    if (first_item() != 0) return;
    state->found_inf = 0;
    state->grad_multiplier =
        unscale && scaler != nullptr ? static_cast<float>(1.0 / static_cast<double>(scaler->scale)) : 1.0f;
}

__global__ void merge_found_inf_kernel(ScalerState* scaler, const StepState* state) {
    if (first_item() == 0 && state->found_inf != 0) scaler->found_inf = 1;
}

// A non-finite step uses up one unit of hysteresis; at none left the scale backs off, not below the floor.
// `interval` finite steps in a row let the scale grow, unless it would leave [0, max_scale], and refill the
// hysteresis.
__global__ void update_scale_kernel(ScalerState* scaler, StepKernels::ScalerArgs a) {
    if (first_item() != 0) return;
    ScalerState s = *scaler;
    const bool found = s.found_inf != 0;
    s.found_inf = 0;
    if (a.dynamic && found) {
        s.growth_tracker = 0;
        s.hysteresis_left = s.hysteresis_left > 1 ? s.hysteresis_left - 1 : 0;
        const float lower = s.scale * a.backoff_factor;
        if (s.hysteresis_left == 0) s.scale = lower > a.min_scale ? lower : a.min_scale;
    } else if (a.dynamic) {
        s.growth_tracker += 1;
        if (a.refill_every_clean_step) s.hysteresis_left = a.hysteresis;
        if (s.growth_tracker >= a.growth_interval) {
            const float higher = s.scale * a.growth_factor;
            if (higher <= a.max_scale && higher - higher == 0) s.scale = higher;
            s.growth_tracker = 0;
            s.hysteresis_left = a.hysteresis;
        }
    }
    *scaler = s;
}

void finish_step(std::span<const ParamRef> params, StepState* state) {
    CounterTable table{};
    std::size_t next = 0;
    do {
        for (table.count = 0; next < params.size() && table.count < counter_table; ++next)
            if (params[next].step != nullptr) table.step[table.count++] = params[next].step;
        launch(finish_step_kernel, grid_for(table.count > 0 ? table.count : 1, counter_block), counter_block,
               0, table, state, next == params.size());
    } while (next < params.size());
}

void begin_step(StepState* state, const ScalerState* scaler, bool multiply_by_inverse_scale) {
    launch(begin_step_kernel, 1, 32, 0, state, scaler, multiply_by_inverse_scale);
}

void merge_found_inf(ScalerState* scaler, const StepState* state) {
    launch(merge_found_inf_kernel, 1, 32, 0, scaler, state);
}

void update_scale(ScalerState* scaler, const StepKernels::ScalerArgs& args) {
    launch(update_scale_kernel, 1, 32, 0, scaler, args);
}

}  // namespace
}  // namespace mezzo::cuda

namespace mezzo {

extern const StepKernels cuda_step_kernels;
const StepKernels cuda_step_kernels{
    .check_finite = cuda::step_check_finite,
    .grad_norm = cuda::step_grad_norm,
    .clip_by_norm = cuda::step_clip_by_norm,
    .clip_by_value = cuda::step_clip_by_value,
    .update = cuda::step_update,
    .finish_step = cuda::finish_step,
    .update_scale = cuda::update_scale,
    .begin_step = cuda::begin_step,
    .merge_found_inf = cuda::merge_found_inf,
};

}  // namespace mezzo
