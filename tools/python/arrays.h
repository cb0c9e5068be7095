// Converts between NumPy's arrays and mezzo's tensors.
#pragma once

#include <pybind11/numpy.h>

#include "mezzo/tensor.h"

namespace mezzo::python {

// Returns a tensor on the array's memory, which lives as long as the tensor. Copies arrays that are not
// row-major, and those in another byte order than the processor's. Throws pybind11::type_error for dtypes
// that mezzo does not have.
Tensor tensor_of(const pybind11::array& array);

// Returns an array on the tensor's memory, which lives as long as the array. Copies tensors of other devices
// and those that are not row-major; bfloat16, which NumPy does not have, becomes float32.
pybind11::array array_of(const Tensor& tensor);

}  // namespace mezzo::python
