// Bias and activation on a GEMM's result, for what the GEMM library cannot fuse.
#include "cuda/gemm/device.cuh"
#include "cuda/gemm/gemm.h"

namespace mezzo::cuda {
namespace {

// One element per thread and round; input, C and pre_activation share type and layout. `input` may be C
// itself.
template <class Acc> __global__ void epilogue_kernel(Gemm g, const void* input) {
    const std::int64_t total = g.batch * g.m * g.n;
    for (std::int64_t i = first_item(); i < total; i += item_step()) {
        const std::int64_t row = i / g.n, column = i % g.n;
        const std::int64_t at = row / g.m * g.stride_c + row % g.m * g.ldc + column;
        Acc value = load<Acc>(input, g.c_type, at);
        if (g.bias != nullptr) value += load<Acc>(g.bias, g.bias_type, column);
        if (g.pre_activation != nullptr) store(g.pre_activation, g.c_type, at, value);
        store(g.c, g.c_type, at, activate(g.activation, value));
    }
}

}  // namespace

void gemm_epilogue(const Gemm& g, const void* input) {
    const unsigned grid = grid_for(g.batch * g.m * g.n, 256);
    if (g.c_type == float64)
        launch(epilogue_kernel<double>, grid, 256, 0, g, input);
    else
        launch(epilogue_kernel<float>, grid, 256, 0, g, input);
}

}  // namespace mezzo::cuda
