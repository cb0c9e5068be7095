// Weight gradients of convolutions on vectors.
#pragma once

#include "cpu/conv/window_product.h"
#include "cpu/conv/window_tables.h"

namespace mezzo::cpu {

// add_window_gradient() for operands of 16 bit and float32, with at least one pixel and one element of the
// result. Kernels of depth 2 take slots, whose type is given as float32.
void add_window_gradient_by_vectors(const WindowGradient& p, const WindowKernels& kernels);

}  // namespace mezzo::cpu
