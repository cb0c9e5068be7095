// Exchanging the elements of a tensor while it stays the same object.
#pragma once

#include "mezzo/tensor.h"

namespace mezzo::nn {

// Makes tensor hold value's elements (of the same shape, any dtype and device). All handles of tensor see the
// change.
void replace_elements(const Tensor& tensor, const Tensor& value);

}  // namespace mezzo::nn
