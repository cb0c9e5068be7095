// Matrix product for cases that the GEMM library does not support: mixed operand types, k == 0, and products
// for which it has no right algorithm.
#include "cuda/gemm/device.cuh"
#include "cuda/gemm/gemm.h"

namespace mezzo::cuda {
namespace {

constexpr int tile = 16;
constexpr unsigned threads = tile * tile;
// The number of products that are summed up separately, so that rounding errors hardly grow with k.
constexpr std::int64_t block_k = 1024;

// Each block computes 16 x 16 tiles of C, one element per thread, over k in slices of 16 held in shared
// memory.
template <class Acc> __global__ void fallback_kernel(Gemm g) {
    MEZZO_SHARED(Acc, a_tile, [tile][tile + 1]);
    MEZZO_SHARED(Acc, b_tile, [tile][tile + 1]);
    const int row = int(threadIdx.x) / tile, column = int(threadIdx.x) % tile;
    const std::int64_t tiles_m = (g.m + tile - 1) / tile, tiles_n = (g.n + tile - 1) / tile;
    for (std::int64_t t = blockIdx.x; t < g.batch * tiles_m * tiles_n; t += gridDim.x) {
        const std::int64_t batch = t / (tiles_m * tiles_n);
        const std::int64_t i = t / tiles_n % tiles_m * tile + row, j = t % tiles_n * tile + column;
        Acc total = 0, sum = 0;
        for (std::int64_t k0 = 0; k0 < g.k; k0 += tile) {
            if (k0 % block_k == 0) {
                total += sum;
                sum = 0;
            }
            const std::int64_t ka = k0 + column, kb = k0 + row;
            const std::int64_t at_a = batch * g.stride_a + (g.trans_a ? ka * g.lda + i : i * g.lda + ka);
            const std::int64_t at_b = batch * g.stride_b + (g.trans_b ? j * g.ldb + kb : kb * g.ldb + j);
            a_tile[row][column] = i < g.m && ka < g.k ? load<Acc>(g.a, g.a_type, at_a) : Acc(0);
            b_tile[row][column] = j < g.n && kb < g.k ? load<Acc>(g.b, g.b_type, at_b) : Acc(0);
            __syncthreads();
            for (int k = 0; k < tile; ++k) sum += a_tile[row][k] * b_tile[k][column];
            __syncthreads();
        }
        if (i >= g.m || j >= g.n) continue;
        const std::int64_t at = batch * g.stride_c + i * g.ldc + j;
        Acc value = Acc(g.alpha) * (total + sum);
        if (g.beta != 0) value += Acc(g.beta) * load<Acc>(g.c, g.c_type, at);
        if (g.bias != nullptr) value += load<Acc>(g.bias, g.bias_type, j);
        if (g.pre_activation != nullptr) store(g.pre_activation, g.c_type, at, value);
        store(g.c, g.c_type, at, activate(g.activation, value));
    }
}

}  // namespace

void gemm_fallback(const Gemm& g) {
    const std::int64_t tiles = g.batch * ((g.m + tile - 1) / tile) * ((g.n + tile - 1) / tile);
    const unsigned limit = grid_limit(threads);
    const unsigned grid = tiles < limit ? unsigned(tiles) : limit;
    if (g.a_type == float64 || g.b_type == float64 || g.c_type == float64)
        launch(fallback_kernel<double>, grid, threads, 0, g);
    else
        launch(fallback_kernel<float>, grid, threads, 0, g);
}

}  // namespace mezzo::cuda
