#define MEZZO_TILE_MODEL
#include "tile_model.h"

#include "cpu/tile_kernels.h"

using namespace mezzo::cpu;

const GemmKernels& tile_model_kernels() {
    static const GemmKernels kernels = [] {
        GemmKernels portable = gemm_portable;
        portable.tiles = &tile_kernels;
        return portable;
    }();
    return kernels;
}
