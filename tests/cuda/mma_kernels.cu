#include "tests/cuda/mma_kernels.h"

#include "cuda/elementwise/approximate.cuh"
#include "cuda/mma.cuh"

namespace mezzo::test {
namespace {

using namespace cuda;

__device__ int lane() { return static_cast<int>(threadIdx.x % 32); }

__global__ void copy_async_kernel(const std::uint16_t* in, std::uint16_t* out) {
    MEZZO_SHARED(std::uint16_t, tile, [32][8]);
    copy_async(tile[lane()], in + lane() * 8, static_cast<unsigned>(lane() % 9 * 2));
    copy_async_commit();
    copy_async_wait<0>();
    __syncthreads();
    const int other = 31 - lane();  // what another lane brought
    for (int i = 0; i < 8; ++i) out[other * 8 + i] = tile[other][i];
}

__global__ void copy_groups_kernel(const std::uint16_t* in, std::uint16_t* out) {
    MEZZO_SHARED(std::uint16_t, tiles, [3][32][8]);
    const auto fetch = [&](int n) {
        copy_async(tiles[n][lane()], in + n * 256 + lane() * 8);
        copy_async_commit();
    };
    const auto hand_on = [&](int n) {
        __syncthreads();
        for (int i = 0; i < 8; ++i) out[n * 256 + (31 - lane()) * 8 + i] = tiles[n][31 - lane()][i];
    };
    for (int n = 0; n < 3; ++n) fetch(n);
    copy_async_wait<2>();
    hand_on(0);
    copy_async_wait<1>();
    hand_on(1);
    copy_async_wait<0>();
    hand_on(2);
}

__global__ void load_matrices_kernel(bool transposed, const std::uint16_t* in, std::uint16_t* out) {
    MEZZO_SHARED(std::uint16_t, tile, [32][8]);
    for (int i = 0; i < 8; ++i) tile[lane()][i] = in[lane() * 8 + i];
    __syncthreads();
    const Frag4 r = transposed ? load_matrices_transposed(tile[lane()]) : load_matrices(tile[lane()]);
    for (int m = 0; m < 4; ++m) {
        out[lane() * 8 + m * 2] = static_cast<std::uint16_t>(r.v[m] & 0xffffu);
        out[lane() * 8 + m * 2 + 1] = static_cast<std::uint16_t>(r.v[m] >> 16);
    }
}

template <class T> __device__ std::uint32_t pair(const T& low, const T& high) {
    return std::uint32_t(low.bits) | std::uint32_t(high.bits) << 16;
}

// B and D in the layouts that mma.cuh describes.
template <class T> __device__ Frag2 operand_b(const T* b) {
    const int g = lane() / 4, t = lane() % 4 * 2;
    return {{pair(b[t * 8 + g], b[(t + 1) * 8 + g]), pair(b[(t + 8) * 8 + g], b[(t + 9) * 8 + g])}};
}
__device__ int place_d(int e) { return (lane() / 4 + e / 2 * 8) * 8 + lane() % 4 * 2 + e % 2; }

template <class T> __global__ void multiply_add_kernel(const T* a, const T* b, float* d) {
    const int g = lane() / 4, t = lane() % 4 * 2;
    Frag4 fragment;
    for (int m = 0; m < 4; ++m) {
        const T* at = a + (g + m % 2 * 8) * 16 + t + m / 2 * 8;
        fragment.v[m] = pair(at[0], at[1]);
    }
    float sum[4];
    for (int e = 0; e < 4; ++e) sum[e] = d[place_d(e)];
    multiply_add(T(), sum, fragment, operand_b(b));
    for (int e = 0; e < 4; ++e) d[place_d(e)] = sum[e];
}

template <class T> __global__ void pack_operand_kernel(const float* x, const T* b, float* d) {
    float left[4], right[4], sum[4] = {};
    for (int e = 0; e < 4; ++e) {
        const int at = (lane() / 4 + e / 2 * 8) * 16 + lane() % 4 * 2 + e % 2;
        left[e] = x[at];
        right[e] = x[at + 8];
    }
    multiply_add(T(), sum, pack_operand<T>(left, right), operand_b(b));
    for (int e = 0; e < 4; ++e) d[place_d(e)] = sum[e];
}

__global__ void exp2_kernel(const float* x, float* y) { y[lane()] = exp2_approximate(x[lane()]); }

template <class T> const T* as(const void* p) { return static_cast<const T*>(p); }

}  // namespace

bool multiplies(Dtype dtype) { return multiplies_on_tensor_cores(0, dtype); }
void run_copy_async(const std::uint16_t* in, std::uint16_t* out) {
    launch(copy_async_kernel, 1, 32, 0, in, out);
}
void run_copy_groups(const std::uint16_t* in, std::uint16_t* out) {
    launch(copy_groups_kernel, 1, 32, 0, in, out);
}
void run_load_matrices(bool transposed, const std::uint16_t* in, std::uint16_t* out) {
    launch(load_matrices_kernel, 1, 32, 0, transposed, in, out);
}
void run_multiply_add(Dtype dtype, const void* a, const void* b, float* d) {
    if (dtype == float16)
        launch(multiply_add_kernel<float16_t>, 1, 32, 0, as<float16_t>(a), as<float16_t>(b), d);
    else
        launch(multiply_add_kernel<bfloat16_t>, 1, 32, 0, as<bfloat16_t>(a), as<bfloat16_t>(b), d);
}
void run_pack_operand(Dtype dtype, const float* x, const void* b, float* d) {
    if (dtype == float16)
        launch(pack_operand_kernel<float16_t>, 1, 32, 0, x, as<float16_t>(b), d);
    else
        launch(pack_operand_kernel<bfloat16_t>, 1, 32, 0, x, as<bfloat16_t>(b), d);
}
void run_exp2(const float* x, float* y) { launch(exp2_kernel, 1, 32, 0, x, y); }

}  // namespace mezzo::test
