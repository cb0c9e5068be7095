// Inputs, results and comparisons for the self-checks of CUDA's optimized kernels (kernels/self_check.h).
#pragma once

#include <cstdint>
#include <vector>

#include "mezzo/tensor.h"

namespace mezzo::cuda {

// Values between -1 and 1, the same for the same seed, on the current device.
Tensor input_of(const Shape& shape, Dtype dtype, std::uint32_t seed);
// A tensor for results, all of whose bytes are 0xFF: floating elements are NaN.
Tensor result_of(const Shape& shape, Dtype dtype);
// All elements of x, which is contiguous. Waits for the device.
std::vector<double> values_of(const Tensor& x);
// Another tensor with the same elements.
Tensor copy_of(const Tensor& x);

// Throws Error(value), with `what` in its message, unless every element of `fast` is within `tolerance` times
// the largest magnitude of `plain` of its element there. Waits for the device. NaN is never within.
void require_close(const char* what, const Tensor& fast, const Tensor& plain, double tolerance);
// The same for equal bytes.
void require_equal(const char* what, const Tensor& fast, const Tensor& plain);
// Throws Error(value), with `what` in its message, if an optimized kernel has refused a problem that it is
// meant for.
void require_taken(const char* what, bool taken);

// 2 to the power of minus the number of significant bits.
double rounding_of(Dtype dtype);

}  // namespace mezzo::cuda
