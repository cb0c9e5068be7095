// Root gradients of a backward pass: those of the outputs at which it starts.
#pragma once

#include "mezzo/tensor.h"

namespace mezzo {

// The root gradient of output i: grad_outputs[i] in the output's dtype, or, if it is missing or undefined,
// a 1 for an output of one element. Throws if the output has no history, or the given gradient does not
// fit. The 1 launches nothing if that of an earlier backward pass is unchanged and has no other reference.
// `op` begins the messages of errors.
Tensor root_gradient(const char* op, const Tensor& output, const Tensors& grad_outputs, std::size_t i);

}  // namespace mezzo
