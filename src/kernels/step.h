// Interface of the kernels of an optimizer step. They work on lists of parameters, and hold all numbers on
// which a step depends (overflow, scale, norm, counts) in device memory.
#pragma once

#include <cstdint>
#include <span>

#include "core/backend.h"
#include "kernels/optimizers.h"

namespace mezzo {

// The loss scale, and the counts that decide when it changes (exact below 2^24).
struct ScaleValues {
    float scale;
    float growth_tracker;   // steps without overflow since the scale last changed
    float hysteresis_left;  // overflows until the scale falls
};
// The scaler's device state: one 64-byte line of float32. The first check of an iteration stores `current` as
// `previous`, and every check computes what update() would make of it, so that update() launches nothing.
struct ScalerState {
    ScaleValues current;
    float found_inf;  // 1 when any optimizer since the last update() saw inf or NaN
    ScaleValues previous;
    float pad[9];
};
// Device state of one optimizer: results of `statistics` for the update, and counts of steps.
struct StepState {
    float found_inf;        // of this optimizer's gradients: 0 or 1
    float grad_multiplier;  // 1/scale, or 1
    float norm;             // of the gradients times grad_multiplier, if requested
    float applied;          // steps applied so far (exact below 2^24)
    float skipped;
    float pad[11];
};

// A parameter of an optimizer step: raw pointers, contiguous storage.
struct ParamRef {
    void* param;  // float32, float64, or 16 bit without a master
    // With a split master param is bfloat16, the upper halves of float32 values, and these are their lower
    // halves, 16 bit each (kernels/narrow_state.h). Otherwise null.
    void* low16 = nullptr;
    void* grad;                        // grad_dtype
    void* state[max_optimizer_state];  // in the order of the optimizer's row, null if unused
    StateFormat format[max_optimizer_state] = {};
    // Parameter's number in its optimizer, and index of `param` in the whole parameter if this is a shard, a
    // multiple of 256. Both choose the random bits of stochastic rounding.
    std::uint32_t number = 0;
    std::int64_t first = 0;
    void* copy16;  // 16-bit copy to write, or null
    std::int64_t numel;
    Dtype dtype, grad_dtype, copy16_dtype;
    std::uint32_t group = 0;  // the index of its StepArgs
    // In device memory: the number of updates applied to this parameter so far, then the row's own numbers
    // (`counted`).
    float* step;
};

// The optimizer types of kernels/optimizers.h.
enum class OptimizerId : std::uint8_t {
#define MEZZO_OPTIMIZER(name) name,
#include "mezzo/optimizers.def"
    count
};
inline constexpr int optimizer_count = int(OptimizerId::count);
struct StepArgs {
    OptimizerId optimizer{};
    double options[max_optimizer_options] = {};  // in the row's order: the first is the learning rate
    const double* lr_on_device = nullptr;        // if given, the kernel reads the learning rate here

    friend bool operator==(const StepArgs&, const StepArgs&) = default;
};

// The factor that gradients are multiplied by: state's grad_multiplier (1 without state), and if `clip` also
// min(1, max_norm / (norm + 1e-6)) with state's norm.
struct GradientFactor {
    const StepState* state = nullptr;  // in device memory
    bool clip = false;
    double max_norm = 0;
};

// The kernels of optimizers and scaler, per device type. States are in device memory.
struct StepKernels {
    // Parameters of update()'s rule for the scale: functors::advance() in kernels/functor_step.h.
    struct ScalerArgs {
        float growth_factor, backoff_factor, growth_interval, min_scale, max_scale, hysteresis;
        bool refill_every_clean_step, dynamic;

        friend bool operator==(const ScalerArgs&, const ScalerArgs&) = default;
    };
    struct Statistics {
        StepState* state;
        float* norm = nullptr;          // if given, the norm is stored here and in state
        ScalerState* scaler = nullptr;  // if given, it gets found_inf and its state after update()
        bool first = false;             // the first check since the scaler's last update()
        bool scaled = false;            // gradients are to be divided by the scale
        bool again = false;             // state->found_inf stays 1 if it is 1
        ScalerArgs args = {};
    };
    // Reads all gradients once, and computes everything that the update and the scaler's update() need.
    // found_inf is 1 if any gradient, or gradient / scale, is not finite.
    void (*statistics)(std::span<const ParamRef> params, const Statistics& wanted);
    // Updates every parameter with gradient * factor, unless found_inf is given and *found_inf is 1. 16-bit
    // copies are written in the same pass. Afterwards every *step and counts->applied grow by 1, or, if the
    // update was skipped, counts->skipped does. All groups are of one optimizer.
    void (*update)(std::span<const ParamRef> params, std::span<const StepArgs> groups,
                   const GradientFactor& factor, const float* found_inf, StepState* counts);
    // gradient *= factor.
    void (*scale_gradients)(std::span<const ParamRef> params, const GradientFactor& factor);
    void (*clip_by_value)(std::span<const ParamRef> params, double limit);
    // flags[i] (device) = 1 if gradient i holds inf or NaN, else 0.
    void (*flag_nonfinite)(std::span<const ParamRef> params, float* flags);
    // Computes the scaler's state after update() anew, from `previous` and found_inf.
    void (*update_scale)(ScalerState* scaler, const ScalerArgs& args);
};
// Null for a device type that has none: kernels/step_copies.h has a substitute.
const StepKernels* step_kernels(DeviceType type);

}  // namespace mezzo
