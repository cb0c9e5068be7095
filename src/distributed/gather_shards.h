// All-gathers sharded tensors, so that every rank has all of their elements.
#pragma once

#include <vector>

#include "distributed/group_impl.h"
#include "distributed/partition.h"
#include "mezzo/tensor.h"

namespace mezzo::distributed {

// Writes the other ranks' shards into each tensor. Tensors are contiguous, on any device, and divided like
// tensor `slot` of the partition. Collective; at most 16 MiB are sent at a time. If all tensors are on the
// rank's CUDA device and all ranks have NCCL, they are sent from device memory and the host does not wait;
// otherwise they go through host memory.
void gather_parts(const std::vector<optim::PartialTensor>& tensors, const Partition& partition,
                  const Group& group);

}  // namespace mezzo::distributed
