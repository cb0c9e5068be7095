// Losses. Inputs are contiguous and of any floating dtypes. Losses are float32, or float64 if an input is; a
// gradient has the dtype of its result.
#pragma once

#include <cstdint>

#include "kernels/kernel.h"
#include "mezzo/ops.h"

namespace mezzo::kernels {

// input, target of one shape -> 0-dim, or element-wise with Reduction::none.
struct MseLoss {
    static constexpr const char* name = "mse_loss";
    Reduction reduction = Reduction::mean;
};
struct L1Loss {
    static constexpr const char* name = "l1_loss";
    Reduction reduction = Reduction::mean;
};
struct SmoothL1Loss {
    static constexpr const char* name = "smooth_l1_loss";
    Reduction reduction = Reduction::mean;
    double beta = 1;  // the difference at which it turns from square to linear
};
struct HuberLoss {
    static constexpr const char* name = "huber_loss";
    Reduction reduction = Reduction::mean;
    double beta = 1;  // delta: as for SmoothL1Loss
};
// An input outside of [0, 1] is an error on the CPU, NaN on CUDA.
struct BinaryCrossEntropy {
    static constexpr const char* name = "binary_cross_entropy";
    Reduction reduction = Reduction::mean;
};
struct BinaryCrossEntropyWithLogits {
    static constexpr const char* name = "binary_cross_entropy_with_logits";
    Reduction reduction = Reduction::mean;
};

// Their gradients: g (0-dim or element-wise), input, target -> gradient of input.
struct MseLossGrad {
    static constexpr const char* name = "mse_loss_grad";
    Reduction reduction = Reduction::mean;
};
// input [rows, cols], target of the same shape and dtype, or float32 for a 16-bit input, g (0-dim) -> the
// gradient of input, and its column sums [cols] (float32; float64 for float64). Not for Reduction::none.
struct MseLossBiasGrad {
    static constexpr const char* name = "mse_loss_bias_grad";
    Reduction reduction = Reduction::mean;
};
struct L1LossGrad {
    static constexpr const char* name = "l1_loss_grad";
    Reduction reduction = Reduction::mean;
};
struct SmoothL1LossGrad {
    static constexpr const char* name = "smooth_l1_loss_grad";
    Reduction reduction = Reduction::mean;
    double beta = 1;
};
struct HuberLossGrad {
    static constexpr const char* name = "huber_loss_grad";
    Reduction reduction = Reduction::mean;
    double beta = 1;
};
struct BinaryCrossEntropyGrad {
    static constexpr const char* name = "binary_cross_entropy_grad";
    Reduction reduction = Reduction::mean;
};
struct BinaryCrossEntropyWithLogitsGrad {
    static constexpr const char* name = "binary_cross_entropy_with_logits_grad";
    Reduction reduction = Reduction::mean;
};

// log_p [rows, classes], target int64 [rows] -> 0-dim, or [rows] with Reduction::none. A target that is
// neither a class nor ignore_index is an error on the CPU, NaN on CUDA.
struct NllLoss {
    static constexpr const char* name = "nll_loss";
    Reduction reduction = Reduction::mean;
    std::int64_t ignore_index = -100;  // rows with this target are left out
};
// g, target -> gradient of log_p [rows, classes].
struct NllLossGrad {
    static constexpr const char* name = "nll_loss_grad";
    Reduction reduction = Reduction::mean;
    std::int64_t ignore_index = -100;
    std::int64_t classes = 0;
};
// logits [rows, classes], target -> loss as above, and [rows] each: the largest logit, and the sum of
// e^(logit - largest).
struct CrossEntropy {
    static constexpr const char* name = "cross_entropy";
    Reduction reduction = Reduction::mean;
    std::int64_t ignore_index = -100;
    double label_smoothing = 0;  // in [0, 1]
};
// g, logits, target, largest, sum -> gradient of logits.
struct CrossEntropyGrad {
    static constexpr const char* name = "cross_entropy_grad";
    Reduction reduction = Reduction::mean;
    std::int64_t ignore_index = -100;
    double label_smoothing = 0;
};

// log_probs [time, batch, classes], float32 or float64, targets int64 [batch, width], or joined in one
// dimension if width is -1, input_lengths and target_lengths int64 [batch] -> losses [batch]. Lengths and
// targets out of range are an error.
struct CtcLoss {
    static constexpr const char* name = "ctc_loss";
    std::int64_t blank = 0, width = -1;
};
// g [batch] and the inputs of CtcLoss -> the gradient of the values of which log_probs is the log_softmax: 0
// behind a sequence's end and where g is 0, NaN where the loss is infinite.
struct CtcLossGrad {
    static constexpr const char* name = "ctc_loss_grad";
    std::int64_t blank = 0, width = -1;
};

// The beta of a loss or its gradient; 0 for those without one.
template <class A> double beta_of(const A& at) {
    if constexpr (requires { at.beta; }) return at.beta;
    return 0;
}

}  // namespace mezzo::kernels
