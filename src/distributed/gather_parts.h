// Every rank's parts of tensors become everybody's.
#pragma once

#include <vector>

#include "distributed/group_impl.h"
#include "distributed/partition.h"
#include "mezzo/tensor.h"

namespace mezzo::distributed {

// Each tensor is contiguous, on any device, and divided like tensor `slot` of the partition. The parts of other ranks are written. Collective; no more than
// 16 MiB are on their way at a time. Tensors that all lie on the rank's CUDA device travel from there, and the host does not wait for it, where all ranks
// have NCCL; otherwise they travel through host memory.
void gather_parts(const std::vector<optim::Incomplete>& tensors, const Partition& partition,
                  const Group& group);

}  // namespace mezzo::distributed
