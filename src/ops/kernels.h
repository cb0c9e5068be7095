// The names of all kernels. An op's kernel has the op's name in mezzo::cpu_kernels and mezzo::cuda_kernels.
#pragma once

#include "core/backend.h"

#define MEZZO_UNARY(name, cast, ints, keep, gradient) Kernel name;
#define MEZZO_UNARY_SCALAR(name, cast, ints, keep, gradient) Kernel name;
#define MEZZO_BINARY(name, cast, ints, keep, gradient_a, gradient_b) Kernel name;
#define MEZZO_COMPARE(name) Kernel name;

// in and out of each, beyond the table:
//   logical_not isfinite          x -> boolean
//   where                         boolean condition, a, b (any strides, broadcast by stride 0) -> promoted dtype
//   masked_fill                   x, boolean mask (broadcast to x by stride 0); at.alpha the value -> like x
//   clamp_grad                    g, x; at.alpha, at.beta -> g where alpha <= x <= beta else 0
//   cast                          x, any strides -> the out dtype, contiguous. Also serves contiguous()/clone()
//   copy_into                     x (broadcast to out by stride 0, any dtype) -> out with any strides (an existing tensor)
//   fill                          () -> out (any strides) = at.alpha
//   sum mean max min norm         x (contiguous), at.axes (ascending) -> reduced; out may be float32 for a 16-bit x
//   argmax                        x (contiguous), at.dim -> int64
//   amax_grad                     g, x, y (reduced shapes of g and y keep size-1 dims) -> g where x == y, divided by the ties
//   matmul                        a [batch.., m, k], b [batch.., k, n] each 2-D or with equal batch dims; last two dims may be
//                                 transposed by strides (one of them stride 1); at.has_dtype: result dtype (float32 from 16 bit)
//                                 at.beta != 0: out accumulates, out = a b + beta * out
//   linear                        x [rows, in], weight [out, in], optional bias [out]; at.activation -> y [rows, out]
//                                 (+ pre-activation [rows, out] as out[1] for gelu when out.size() == 2)
//   column_sum                    x [rows, cols] -> [cols] in the out dtype (bias gradients)
//   softmax log_softmax           x (contiguous), at.dim -> out dtype (float32 for a 16-bit x under autocast)
//   softmax_grad log_softmax_grad g, y, at.dim -> the out dtype
//   mse_loss l1_loss smooth_l1_loss bce bce_with_logits
//                                 input, target (contiguous, same shape, dtypes may differ); at.reduction 0 none 1 mean 2 sum;
//                                 at.alpha beta of smooth_l1 -> float32 (float64 for float64) 0-dim or elementwise
//   *_grad of those               g (0-dim or elementwise), input, target -> gradient of input, in the out dtype
//   nll_loss                      log_p [rows, classes], target int64 [rows], at.index ignored class -> 0-dim or [rows]
//   nll_loss_grad                 g, target; at.shape = [rows, classes] -> gradient of log_p
//   cross_entropy                 logits, target; at.index, at.alpha = label smoothing -> loss (0-dim or [rows]), log-sum-exp [rows]
//   cross_entropy_grad            g, logits, target, log-sum-exp -> gradient of logits in the out dtype
//   dropout                       x; at.alpha = p, at.seed, at.offset -> y (element i uses 16 random bits, see core/philox.h)
//   random_uniform random_normal random_int   () ; at.seed, at.offset, at.alpha, at.beta (low/high or mean/stddev) -> out
//   cat                           any number of inputs (contiguous, dtype of out); at.dim -> out
//   arange                        () -> out[i] = i
#define MEZZO_OTHER_KERNELS                                                                                        \
    Kernel logical_not, isfinite, where, masked_fill, clamp_grad, cast, copy_into, fill, sum, mean, max, min, norm, \
        argmax, amax_grad, matmul, linear, column_sum, softmax, log_softmax, softmax_grad, log_softmax_grad,        \
        mse_loss, mse_loss_grad, l1_loss, l1_loss_grad, smooth_l1_loss, smooth_l1_loss_grad, bce, bce_grad,         \
        bce_with_logits, bce_with_logits_grad, nll_loss, nll_loss_grad, cross_entropy, cross_entropy_grad, dropout, \
        random_uniform, random_normal, random_int, cat, arange;

namespace mezzo::cpu_kernels {
#include "mezzo/ops.def"
MEZZO_OTHER_KERNELS
}  // namespace mezzo::cpu_kernels

namespace mezzo::cuda_kernels {
#include "mezzo/ops.def"
MEZZO_OTHER_KERNELS
}  // namespace mezzo::cuda_kernels

#undef MEZZO_UNARY
#undef MEZZO_UNARY_SCALAR
#undef MEZZO_BINARY
#undef MEZZO_COMPARE
#undef MEZZO_OTHER_KERNELS

// The kernels of an op on every device of this build.
#ifdef MEZZO_HAVE_CUDA
#define MEZZO_KERNELS(name) {mezzo::cpu_kernels::name, mezzo::cuda_kernels::name}
#else
#define MEZZO_KERNELS(name) {mezzo::cpu_kernels::name, nullptr}
#endif

namespace mezzo {

// The optimizer step: two kernels over lists of parameters (decision 8). Device scalars live in one float32/int32 block.
// Layout of the scaler's device state, one 64-byte line of float32 (integers are exact below 2^24; counters are separate int32).
struct ScalerState {
    float scale;        // loss scale
    float growth_tracker;
    float hysteresis_left;
    float found_inf;    // 1 when any optimizer since the last update() saw inf or NaN
    float pad[12];
};
// One per optimizer: what grad_stats leaves for the update kernel, and the applied-step count.
struct StepState {
    float found_inf;      // of this optimizer's gradients: 0 or 1
    float grad_multiplier;  // gradients are multiplied by it in the update: 1/scale unless already unscaled
    float norm;           // of the unscaled gradients, when asked
    float clip;           // coefficient of clip_grad_norm_, 1 otherwise
    float applied;        // steps applied so far (exact below 2^24)
    float skipped;
    float pad[10];
};

// A parameter of an optimizer step: raw pointers, contiguous storage.
struct ParamRef {
    void* param;       // float32, float64, or 16 bit without a master
    void* grad;        // grad_dtype
    void* state[2];    // momentum buffer / exp_avg, exp_avg_sq: float32 (float64 for float64 parameters); null if unused
    void* shadow;      // 16-bit copy to write, or null
    std::int64_t numel;
    Dtype dtype, grad_dtype, shadow_dtype;
    float* step;       // device: updates applied to this parameter so far; 0 makes SGD start its momentum buffer with the gradient
};

enum class Algorithm : std::uint8_t { sgd, adam, adamw };
struct StepArgs {
    Algorithm algorithm = Algorithm::sgd;
    double lr = 0, weight_decay = 0;
    double momentum = 0, dampening = 0;
    bool nesterov = false;
    double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
    bool maximize = false;
};

// The kernels of optimizers and scaler, per device type. `state` and `scaler` are device pointers.
struct StepKernels {
    // found_inf |= any non-finite gradient, or gradient * inverse scale non-finite; if multiply: writes gradient * (1/scale) back
    // (the public unscale_). scale is *scaler.scale; scaler null: 1. Also flags per parameter (device float[n], may be null).
    void (*check_finite)(std::span<const ParamRef> params, const ScalerState* scaler, bool multiply, StepState* state,
                         float* per_param_flags);
    // The Euclidean norm over all gradients (as they are) into *norm (device float).
    void (*grad_norm)(std::span<const ParamRef> params, float* norm);
    // gradient *= min(1, max_norm / (*norm + 1e-6)).
    void (*clip_by_norm)(std::span<const ParamRef> params, const float* norm, double max_norm);
    void (*clip_by_value)(std::span<const ParamRef> params, double limit);
    // Nothing if state->found_inf; else one update of every parameter with gradient * grad_multiplier, shadows written in the
    // same pass. Adam's step count is *step + 1.
    void (*update)(std::span<const ParamRef> params, const StepArgs& args, const StepState* state);
    // After update: unless found_inf, every *step += 1 and applied += 1; else skipped += 1.
    void (*finish_step)(std::span<const ParamRef> params, StepState* state);
    // The scaler's update() on the device (amp-semantics section 2.5 with floor, cap and hysteresis).
    struct ScalerArgs {
        float growth_factor, backoff_factor, growth_interval, min_scale, max_scale, hysteresis;
        bool refill_every_clean_step, dynamic;
    };
    void (*update_scale)(ScalerState* scaler, const ScalerArgs& args);
    // state->found_inf = 0, grad_multiplier = 1 or 1/scale; scaler.found_inf |= state.found_inf when merge.
    void (*begin_step)(StepState* state, const ScalerState* scaler, bool multiply_by_inverse_scale);
    void (*merge_found_inf)(ScalerState* scaler, const StepState* state);
};
const StepKernels* step_kernels(DeviceType type);

}  // namespace mezzo
