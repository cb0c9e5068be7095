// Products of windows on vectors, which read the windows without im2col.
#pragma once

#include "cpu/conv/window_product.h"
#include "cpu/conv/window_tables.h"

namespace mezzo::cpu {

// multiply_windows() for operands of 16 bit and float32, with at least one pixel. Kernels of depth 2 take
// bfloat16 operands with an even number of channels.
void multiply_windows_in_place(const WindowProduct& p, const WindowKernels& kernels);

}  // namespace mezzo::cpu
