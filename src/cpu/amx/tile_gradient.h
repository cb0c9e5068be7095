// Weight gradients on tiles that read windows without im2col.
#pragma once

#include "cpu/amx/tile_tables.h"
#include "cpu/conv/window_product.h"

namespace mezzo::cpu {

// Whether add_window_gradient_on_tiles() supports the gradient, and copying windows for gemm() would take
// longer.
bool suits_tiles(const WindowGradient& p, const TileProduct& product);

// `sums` are float32 of the result's shape: sums = the gradient, or += if `accumulate`.
void add_window_gradient_on_tiles(const WindowGradient& p, const TileProduct& product, float* sums,
                                  bool accumulate);

}  // namespace mezzo::cpu
