// NumPy's arrays and mezzo's tensors.
#pragma once

#include <pybind11/numpy.h>

#include "mezzo/tensor.h"

namespace mezzo::python {

// A tensor on the array's memory, which lives as long as the tensor does. Copied are arrays that are not row-major, and
// those whose bytes are not in the order of the processor. pybind11::type_error for dtypes that mezzo does not have.
Tensor tensor_of(const pybind11::array& array);

// An array on the tensor's memory, which lives as long as the array does. Copied are tensors of other devices and those
// that are not row-major; bfloat16, which NumPy does not have, becomes float32.
pybind11::array array_of(const Tensor& tensor);

}  // namespace mezzo::python
