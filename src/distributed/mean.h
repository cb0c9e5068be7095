// Averages a bucket over all ranks.
#pragma once

#include "core/device_collectives.h"
#include "distributed/collectives.h"
#include "mezzo/tensor.h"

namespace mezzo::distributed {

struct MeanOptions {
    int ranks;
    Dtype wire = float32;  // dtype in which float32 elements are sent
    bool ordered = false;  // float32 elements are added in the order of the ranks
};

// Replaces the elements of x by their means over all ranks: the sum times 1 / ranks. x is in host memory,
// contiguous and 1-dim, of a floating dtype; its length is a multiple of the number of ranks.
//
// 16-bit elements are added in float32 in the order of the ranks, and the mean is rounded once. If `wire` is
// a 16-bit dtype, float32 elements are multiplied by 1 / ranks before they are rounded to it, so that the sum
// does not leave its range.
void mean_(Collectives& engine, const Tensor& x, const MeanOptions& options);

// Queues the same on a device, on its communication stream. scratch has mean_scratch() bytes there.
void mean_(DeviceCollectives& engine, const Tensor& x, const MeanOptions& options, const Tensor& scratch);
std::int64_t mean_scratch(std::int64_t elements, Dtype dtype, const MeanOptions& options);

}  // namespace mezzo::distributed
