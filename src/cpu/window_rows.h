// Products of windows that are read where they lie, with vectors.
#pragma once

#include "cpu/window_product.h"

namespace mezzo::cpu {

// multiply_windows() for operands of 16 bit and float32, with at least one pixel.
void multiply_windows_in_place(const WindowProduct& p);

}  // namespace mezzo::cpu
