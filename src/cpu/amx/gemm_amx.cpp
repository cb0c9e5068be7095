// Products on AMX tiles. Built with flags of its own; without them the table is empty and gemm() multiplies
// with vectors. GCC defines __AMX_TILE__ and __AMX_BF16__, clang 14 __AMXTILE__ and __AMXBF16__.
#if (defined(__AMX_TILE__) || defined(__AMXTILE__)) && (defined(__AMX_BF16__) || defined(__AMXBF16__)) && \
    defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512BF16__)
#include "cpu/amx/tile_kernels.h"

namespace mezzo::cpu {

const TileKernels tiles_amx = tile_kernels;

}  // namespace mezzo::cpu

#else
#include "cpu/amx/tile_tables.h"

namespace mezzo::cpu {

const TileKernels tiles_amx = {};

}  // namespace mezzo::cpu

#endif
