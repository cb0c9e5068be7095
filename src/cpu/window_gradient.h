// Weight gradients with vectors.
#pragma once

#include "cpu/window_product.h"

namespace mezzo::cpu {

// add_window_gradient() for operands of 16 bit and float32, with at least one pixel and one element of the
// result.
void add_window_gradient_by_vectors(const WindowGradient& p);

}  // namespace mezzo::cpu
