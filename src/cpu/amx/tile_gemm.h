// Matrix products on tiles, with C and k cut into blocks for the caches and for the threads.
#pragma once

#include "cpu/amx/tile_tables.h"
#include "mezzo/matmul_precision.h"

namespace mezzo::cpu {

// The product for two operands of one type; null for other types, and for float32 at full precision.
inline const TileProduct* tile_product(const TileKernels& tiles, Dtype type,
                                       Float32MatmulPrecision precision) {
    if (type == bfloat16) return &tiles.bf16;
    if (type == float16) return &tiles.f16;
    if (type != float32 || precision == Float32MatmulPrecision::highest) return nullptr;
    return precision == Float32MatmulPrecision::high ? &tiles.f32_six : &tiles.f32_three;
}

// C = activation(alpha op(A) op(B) + bias + beta C) for one matrix, with operands of the types that `product`
// is for; g.bias is float32 or null, k > 0. The vector kernels of `kernels` compute the parts of C whose
// operands have elements without planes.
void gemm_on_tiles(const TileProduct& product, const Gemm& g, const GemmKernels& kernels);

}  // namespace mezzo::cpu
