// Compares first and second derivatives with central differences along random directions, in float64 on the
// CPU.
#pragma once

#include <string>

#include "kernels/kernel.h"
#include "mezzo/ops.h"

namespace mezzo::test {

using Function = Tensor(In x);

// Returns "" if the gradient of <function(inputs), v>, for a random v, agrees with differences of its values.
// Inputs that are not float64 are constants.
std::string check_gradient(Function* function, const Tensors& inputs);
// The same for the gradient of <gradient, u>, with respect to the inputs and to v.
std::string check_second_gradient(Function* function, const Tensors& inputs);

}  // namespace mezzo::test
