#define MEZZO_TILE_MODEL
#include "tests/cpu/tile_model.h"

#include "cpu/amx/tile_kernels.h"

using namespace mezzo::cpu;

const GemmKernels& tile_model_kernels() {
    static const GemmKernels kernels = [] {
        GemmKernels portable = gemm_portable;
        portable.tiles = &tile_kernels;
        return portable;
    }();
    return kernels;
}
