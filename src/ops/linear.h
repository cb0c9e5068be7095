// What linear and its gradient share.
#pragma once

#include "ops/common.h"

namespace mezzo {

// Gradients of values inside a linear layer (Row::inner_gradients), as the linear layer above may send them.
enum LinearInner : std::uint8_t {
    of_before_activation,  // [rows, out]: of x W^T + b
    of_bias,               // [out]: the sums of its columns
    linear_inner_gradients
};

// The gradients of x [..., in], weight and, if there is one, bias. Takes gs of the results, or those of
// LinearInner behind them.
Tensors linear_vjp(const Node& node, const Tensors& gs);

// Whether linear layers on a device give the gradient before an activation and the one of the bias, or the
// one of the input of the layer above, in one kernel.
bool fuses_bias_gradients(Device device);
bool fuses_layers(Device device);

}  // namespace mezzo
