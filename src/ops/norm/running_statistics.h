// The running statistics of a batch norm.
#pragma once

#include "core/internal.h"
#include "mezzo/tensor.h"

namespace mezzo {

// Tensors of running statistics: vectors with one element per channel; batches is int64, 0-dim, or undefined,
// and updates are not counted then.
struct RunningStatistics {
    Tensor mean, variance, batches;
};
// Updates them by the formula of kernels::BatchNorm, after a batch of n values per channel with this mean and
// this biased variance.
MEZZO_INTERNAL void update_running(const RunningStatistics& running, const Tensor& mean,
                                   const Tensor& variance, double n, double momentum);

}  // namespace mezzo
