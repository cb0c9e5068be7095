// Helpers of all losses: the dtype of the result and the three reductions.
#pragma once

#include "core/enumerators.h"
#include "ops/common.h"

namespace mezzo {

// The dtype in which loss kernels accumulate and return: float64 if an input is float64, otherwise float32.
inline Dtype loss_dtype(Dtype a, Dtype b) { return a == float64 || b == float64 ? float64 : float32; }

// The loss in the dtype `natural`, that of the values from which it was computed. Inside an Autocast scope
// the loss of 16-bit values stays float32.
Tensor finished_loss(const Tensor& loss, const Tensor& input, Dtype natural);

// Throws Error(value) for a value that is no enumerator.
inline void check_reduction(const char* op, Reduction reduction) {
    check_enumerator(op, "reduction", reduction, Reduction::sum);
}

// The shape of a loss of such values. Throws Error(value) for a reduction that is none.
inline Shape result_shape(const char* op, const Shape& values, Reduction reduction) {
    check_reduction(op, reduction);
    return reduction == Reduction::none ? values : Shape{};
}

// The reduction of the values per element.
Tensor reduced(const Tensor& values, Reduction reduction);
// The gradient of each value, for the gradient g of the reduced loss: g / count for a mean, otherwise g.
Tensor spread_loss_grad(const Tensor& g, Reduction reduction, double count);

// weight * x, which broadcast, and 0 where a weight of 0 meets an infinite x (not NaN). There the gradients
// of both are 0, too.
Tensor weighted(const Tensor& weight, const Tensor& x);

// If the input of mse_loss, node c, is the result of a linear layer that nothing else reads, sends that layer
// the gradients of its result and of its bias, made by one kernel. Returns false if it is not, or if the
// device has no such kernel. g: the gradient of the loss.
bool send_mse_loss_bias_grad(const Node& c, Reduction reduction, const Tensor& g);

}  // namespace mezzo
