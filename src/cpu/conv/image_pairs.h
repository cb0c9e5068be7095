// Weight gradients in bfloat16 with AVX-512 BF16, whose instruction adds two products at a time: one of each
// of two images.
#pragma once

#include "cpu/conv/window_product.h"

namespace mezzo::cpu {

// Whether add_window_gradient_by_pairs() supports the gradient and does not waste much of its work.
bool pairs_images(const WindowGradient& p);

// `sums` are float32 of the result's shape: sums = the gradient, or += if `accumulate`.
void add_window_gradient_by_pairs(const WindowGradient& p, float* sums, bool accumulate);

}  // namespace mezzo::cpu
