// Batch norms that take the statistics of all ranks' batches.
#pragma once

#include "mezzo/distributed.h"
#include "mezzo/module.h"

#pragma GCC visibility push(default)

namespace mezzo::distributed {

// From now on each nn::BatchNorm1d and BatchNorm2d in the module normalises, while it trains, with mean and
// variance of the rows of all ranks, as PyTorch's SyncBatchNorm does: N ranks with a part of the batch each
// compute what one process computes of the whole. Ranks may have different numbers of rows, and none, but all
// must make the call, also in insight::replay(). The gradient takes account of the other ranks' rows;
// gradients of weight and bias are the rank's own, and are averaged by DataParallel. Running statistics are
// the same on all ranks, bit for bit. Parameters, buffers and names stay as they are; after eval() nothing
// changes, unless the layer has no running statistics: then each rank takes those of its own rows.
//
//     nn::ResNet net(nn::resnet_config(20));
//     distributed::convert_sync_batchnorm(net, group);
//     distributed::DataParallel parallel(net, group);
//
// Copies of a converted module are converted. Returns the number of batch norms in the module. In a group of
// one rank nothing changes.
//
// Each call exchanges two numbers per channel, and so does its backward. A converted training call throws
// Error(value) on all ranks where they have fewer than two values per channel together, Error(state) inside a
// captured step, and in a backward with create_graph: there is no second derivative.
int convert_sync_batchnorm(nn::Module& module, const Group& group);

}  // namespace mezzo::distributed

#pragma GCC visibility pop
