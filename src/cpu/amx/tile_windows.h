// Products of windows on tiles that read the windows without im2col.
#pragma once

#include "cpu/amx/tile_tables.h"
#include "cpu/conv/window_product.h"

namespace mezzo::cpu {

// Whether multiply_windows_on_tiles() supports the product, and copying windows for gemm() would take longer.
bool suits_tiles(const WindowProduct& p, const TileProduct& product);

void multiply_windows_on_tiles(const WindowProduct& p, const TileProduct& product);

}  // namespace mezzo::cpu
