// The products of window_product.h by other ways than im2col. All are for at least one pixel.
#pragma once

#include "cpu/conv/window_product.h"
#include "cpu/conv/window_tables.h"

namespace mezzo::cpu {

// On vectors, for operands of 16 bit and float32, and a gradient of at least one element. Kernels of depth 2
// take bfloat16 operands with an even number of channels, or for a gradient slots, whose type is given as
// float32.
void multiply_windows_in_place(const WindowProduct& p, const WindowKernels& kernels);
void add_window_gradient_by_vectors(const WindowGradient& p, const WindowKernels& kernels);

// Weight gradients in bfloat16 with AVX-512 BF16, whose instruction adds two products at a time: one of each
// of two images. pairs_images() is whether this supports the gradient and does not waste much of its work.
// `sums` are float32 of the result's shape: sums = the gradient, or += if `accumulate`.
bool pairs_images(const WindowGradient& p);
void add_window_gradient_by_pairs(const WindowGradient& p, float* sums, bool accumulate);

// For several groups of few channels, as in depthwise convolutions, with operands and a result of 16 bit or
// float32. 16-bit numbers are exact in float32, in which everything is computed.
bool has_small_groups(const WindowProduct& p);
bool has_small_groups(const WindowGradient& p);
void multiply_small_groups(const WindowProduct& p);
void add_small_group_gradient(const WindowGradient& p);

}  // namespace mezzo::cpu
