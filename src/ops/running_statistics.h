// The running statistics of a batch norm.
#pragma once

#include "mezzo/tensor.h"

namespace mezzo {

// Vectors, one element per channel; batches is int64, 0-dim, or undefined: the updates are not counted.
struct RunningStatistics {
    Tensor mean, variance, batches;
};
// Updates them as kernels::BatchNorm says, after a batch of n values per channel with this mean and this biased variance.
void update_running(const RunningStatistics& running, const Tensor& mean, const Tensor& variance, double n,
                    double momentum);

}  // namespace mezzo
