// Normalisation of the rows of x [.., cols]. Weights and biases are [cols]; inputs may have any floating
// dtypes. If one more result than named below follows, of a 16-bit dtype, it gets a copy of y: y after its
// rounding to its own dtype, float32, is rounded once more.
#pragma once

#include "kernels/kernel.h"
#include "mezzo/device.h"

namespace mezzo::kernels {

// x, weight, bias -> y and, if there are more results, mean and rstd [rows].
struct LayerNorm {
    static constexpr const char* name = "layer_norm";
    double eps = 1e-5;  // added to the variance
};
// g, x [rows, cols], weight, mean, rstd, waiting or undefined -> gradients of x, weight, bias. waiting, an
// accumulated gradient of the dtype of the first result, is added to that before it is rounded. Kernels read
// rstd and need no eps.
struct LayerNormGrad {
    static constexpr const char* name = "layer_norm_grad";
    double eps = 1e-5;
};
// x, weight -> y and, if there is a second result, rstd [rows].
struct RmsNorm {
    static constexpr const char* name = "rms_norm";
    double eps = 1e-5;  // added to the mean of squares
};
// g, x [rows, cols], weight, rstd, waiting or undefined -> gradients of x, weight.
struct RmsNormGrad {
    static constexpr const char* name = "rms_norm_grad";
    double eps = 1e-5;
};
// weight, x, x_bias or undefined, residual, bias -> y = layer_norm(z) and, if there are more results,
// z = dropout(x + x_bias) + residual, mean, rstd.
struct DropoutAddLayerNorm {
    static constexpr const char* name = "dropout_add_layer_norm";
    double dropout_p = 0;
    double eps = 1e-5;
    RandomState stream = {};  // of the dropout (kernels/random.h)
};
// g, z [rows, cols], weight, mean, rstd -> gradients of x, residual, weight, bias and, if there is a fifth
// result, x_bias.
struct DropoutAddLayerNormGrad {
    static constexpr const char* name = "dropout_add_layer_norm_grad";
    DropoutAddLayerNorm forward = {};  // attributes of the forward op
};

// Takes the 16-bit copy of the first result off the results, if there is one.
inline Tensor taken_copy(Out& out) {
    if (out.size() < 2 || !is_16bit(out.back().dtype())) return {};
    const Tensor copy = out.back();
    out = out.first(out.size() - 1);
    return copy;
}

}  // namespace mezzo::kernels
