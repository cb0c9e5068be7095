// Depthwise convolutions: every channel is a group of its own.
#pragma once

#include "cpu/conv/window_product.h"

namespace mezzo::cpu {

// Whether the functions below are for a product: one channel in and out of each group, operands and result of
// 16 bit or float32.
bool is_depthwise(const WindowProduct& p);
bool is_depthwise(const WindowGradient& p);

// multiply_windows() and add_window_gradient() for at least one pixel. 16-bit numbers are exact in float32,
// in which everything is computed.
void multiply_depthwise(const WindowProduct& p);
void add_depthwise_gradient(const WindowGradient& p);

}  // namespace mezzo::cpu
