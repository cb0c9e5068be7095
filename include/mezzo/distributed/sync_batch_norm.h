// Synchronised batch norm: statistics over the batches of all ranks.
//
//   nn::ResNet resnet(nn::resnet_config(20));
//   distributed::convert_sync_batchnorm(resnet, group);
//   distributed::DataParallel parallel(resnet, group);
#pragma once

#include "mezzo/distributed/group.h"
#include "mezzo/module.h"

#pragma GCC visibility push(default)

namespace mezzo::distributed {

// Converts each nn::BatchNorm1d and BatchNorm2d in the module to normalise, in training mode, with mean and
// variance of the rows of all ranks, as PyTorch's SyncBatchNorm: N ranks with a part of the batch each
// compute the result of one process with the whole batch. Ranks may have different numbers of rows, also 0,
// but all must make the call, also in insight::replay(). The gradient of x includes the other ranks' rows;
// gradients of weight and bias are the rank's own, and DataParallel averages them. Running statistics are the
// same on all ranks, bit for bit. Parameters, buffers and names do not change. Eval mode does not change;
// there a layer without running statistics uses those of the rank's own rows.
//
// Copies of a converted module are converted. Returns the number of batch norms in the module. In a group of
// one rank nothing changes.
//
// Each call exchanges two numbers per channel, and so does its backward. A converted training call throws
// Error(value) on all ranks if all together have fewer than two values per channel, and Error(state) inside a
// captured step; its backward throws Error(state) with create_graph, because there is no second derivative.
int convert_sync_batchnorm(nn::Module& module, const Group& group);

}  // namespace mezzo::distributed

#pragma GCC visibility pop
