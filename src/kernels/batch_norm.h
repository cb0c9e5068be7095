// Normalisation of images: batch_norm over all pixels of a channel, group_norm over groups of channels of a
// sample. Inputs may have any floating dtypes. Sums are float32 (float64 for float64) in an order that
// depends on shapes only.
#pragma once

#include <cstdint>

#include "kernels/kernel.h"

namespace mezzo::kernels {

// x [rows, C], weight [C], bias [C], residual [rows, C] or undefined, running_mean and running_var [C] or
// both undefined, num_batches_tracked (int64, 0-dim) or undefined -> y [rows, C] = relu((x - mean) rstd
// weight + bias + residual) and, if there are more results, a bit for each element of y that is set where y >
// 0 (uint8 [(rows C + 7) / 8], bit i % 8 of byte i / 8; no elements unless relu), mean [C] and rstd [C].
// `batch_statistics`: mean and biased variance are those of x, otherwise the running ones. `update`: the last
// three inputs are written: running = (1 - f) running + f batch, with the unbiased variance and f = momentum,
// or 1 / num_batches_tracked after counting if momentum is NaN. Nothing is written, and nothing counted, if a
// mean or variance of x, or a running one after the update, is not finite in any channel.
struct BatchNorm {
    static constexpr const char* name = "batch_norm";
    bool batch_statistics = true, update = false, relu = false;
    double momentum = 0.1;
    double eps = 1e-5;  // added to the variance
};
// g [rows, C], x [rows, C], weight [C], the bits of BatchNorm or undefined, mean [C], rstd [C] -> gradients
// of x, of the residual (g where the bit is set; not written if the result has no elements), of weight and of
// bias. Without batch_statistics mean and rstd do not depend on x.
struct BatchNormGrad {
    static constexpr const char* name = "batch_norm_grad";
    bool batch_statistics = true;
    double eps = 1e-5;
};
// x [N, pixels, C], weight [C], bias [C] -> y and, if there are more results, mean and rstd [N, groups].
struct GroupNorm {
    static constexpr const char* name = "group_norm";
    std::int64_t groups = 1;
    double eps = 1e-5;
};
// g, x [N, pixels, C], weight [C], mean, rstd [N, groups] -> gradients of x, weight, bias.
struct GroupNormGrad {
    static constexpr const char* name = "group_norm_grad";
    std::int64_t groups = 1;
    double eps = 1e-5;
};

}  // namespace mezzo::kernels
