// A bias in every row of C, for products that add to C; both have 16-bit elements of one dtype.
#include "cuda/gemm/device.cuh"
#include "cuda/gemm/gemm.h"

namespace mezzo::cuda {
namespace {

__global__ void bias_rows_kernel(Gemm g, const std::uint16_t* bias, std::uint16_t* matrix) {
    for (std::int64_t i = first_item(); i < g.batch * g.m * g.n; i += item_step()) {
        const std::int64_t row = i / g.n, column = i % g.n;
        matrix[row / g.m * g.stride_c + row % g.m * g.ldc + column] = bias[column];
    }
}

}  // namespace

void gemm_bias_rows(const Gemm& g, void* matrix) {
    launch(bias_rows_kernel, grid_for(g.batch * g.m * g.n), 256, 0, g,
           static_cast<const std::uint16_t*>(g.bias), static_cast<std::uint16_t*>(matrix));
}

}  // namespace mezzo::cuda
