// Convolutions whose groups have few channels, such as depthwise ones.
#pragma once

#include "cpu/conv/window_product.h"

namespace mezzo::cpu {

// Whether the functions below are for a product: several groups of few channels, with operands and a result
// of 16 bit or float32.
bool has_small_groups(const WindowProduct& p);
bool has_small_groups(const WindowGradient& p);

// multiply_windows() and add_window_gradient() for at least one pixel. 16-bit numbers are exact in float32,
// in which everything is computed.
void multiply_small_groups(const WindowProduct& p);
void add_small_group_gradient(const WindowGradient& p);

}  // namespace mezzo::cpu
