// Kernels with one fault each: `planted_faults NAME`. run_faults.py expects a tool to stop each of them but
// `good`.
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "cuda/kernel.cuh"

namespace {

using namespace mezzo;
using cuda::launch;

constexpr unsigned full = 0xffffffffu;
constexpr unsigned threads = 256;

__device__ float warp_sum(float v) { return cuda::warp_reduce(v, cuda::Sum()); }

enum class Fault { none, no_barrier, shared_out_of_bounds };

// Two-stage sum of one block.
template <Fault fault> __global__ void sum_kernel(const float* x, float* out) {
    MEZZO_SHARED(float, partial, [8]);
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float v = warp_sum(x[blockIdx.x * blockDim.x + threadIdx.x]);
    if (lane == 0) partial[fault == Fault::shared_out_of_bounds ? warp + 1 : warp] = v;
    if (fault != Fault::no_barrier) __syncthreads();
    if (warp != 0) return;
    v = warp_sum(lane < 8 ? partial[lane] : 0.0f);
    if (lane == 0) out[blockIdx.x] = v;
}

// The second use of the buffer starts before everybody has read the first.
__global__ void reuse_kernel(const float* x, float* out) {
    MEZZO_SHARED(float, buffer, [256]);
    const unsigned t = threadIdx.x;
    buffer[t] = x[t];
    __syncthreads();
    const float a = buffer[255 - t];
    buffer[t] = a * 2;
    __syncthreads();
    out[t] = buffer[255 - t];
}

__global__ void dynamic_out_of_bounds_kernel(float* out) {
    MEZZO_DYN_SHARED(float, s);
    s[threadIdx.x + 1] = 1;
    __syncthreads();
    out[threadIdx.x] = s[threadIdx.x];
}

__global__ void global_out_of_bounds_kernel(float* out, unsigned n) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i <= n) out[i] = 1;
}

__global__ void misaligned_kernel(const float* x, float* out) {
    const auto v = reinterpret_cast<const cuda::Vec<float, 4>*>(x + 1)[threadIdx.x];
    out[threadIdx.x] = v.v[0];
}

__global__ void half_block_barrier_kernel(float* out) {
    if (threadIdx.x < 128) __syncthreads();
    out[threadIdx.x] = 1;
}

__global__ void two_barriers_kernel(float* out) {
    if (threadIdx.x < 128) {
        out[threadIdx.x] = 2;
        __syncthreads();
    } else {
        out[threadIdx.x] = 3;
        __syncthreads();
    }
}

__global__ void early_return_kernel(float* out, unsigned n) {
    if (threadIdx.x >= n) return;
    __syncthreads();
    out[threadIdx.x] = 1;
}

// A shuffle does not order memory.
__global__ void no_syncwarp_kernel(const float* x, float* out) {
    MEZZO_SHARED(float, s, [32]);
    s[threadIdx.x] = x[threadIdx.x];
    const float one = __shfl_xor_sync(full, 1.0f, 1);
    out[threadIdx.x] = s[threadIdx.x ^ 1] * one;
}

__global__ void divergent_shuffle_kernel(float* out) {
    float v = float(threadIdx.x);
    if (threadIdx.x % 32 < 16) v = __shfl_down_sync(full, v, 1);
    out[threadIdx.x] = v;
}

__global__ void outside_mask_kernel(float* out) {
    float v = float(threadIdx.x);
    if (threadIdx.x % 32 < 16) v = __shfl_xor_sync(0xffffu, v, 16);
    out[threadIdx.x] = v;
}

__global__ void block_race_kernel(float* out) {
    if (threadIdx.x == 0) out[0] += 1;
}

// The partial result is handed to the last block without a fence before the ticket.
__global__ void no_fence_kernel(const float* x, float* out, float* partial, unsigned* ticket) {
    if (threadIdx.x != 0) return;
    partial[blockIdx.x] = x[blockIdx.x];
    if (atomicAdd(ticket, 1u) != gridDim.x - 1) return;
    __threadfence();
    for (unsigned b = 0; b < gridDim.x; ++b) out[b] = partial[b];
}

__global__ void uninitialised_kernel(float* out) {
    MEZZO_SHARED(float, s, [256]);
    if (threadIdx.x < 255) s[threadIdx.x] = 1;
    __syncthreads();
    out[threadIdx.x] = s[threadIdx.x];
}

__global__ void overflow_kernel(float* out, int stride) {
    const int at = int(threadIdx.x) * stride;
    out[0] = at > 0 ? 0.0f : -0.0f;
}

__global__ void copy_kernel(const float* x, float* out) { out[threadIdx.x] = x[threadIdx.x]; }

// x is 0..36 repeated; y is zero, of `threads` floats. Each case launches and says what y must become.
struct Run {
    std::vector<float> host_x, want;
    float *x, *y;

    bool go(const std::string& name);
    bool barriers_and_warps(const std::string& name);
    bool memory(const std::string& name);
    bool races(const std::string& name);
};

bool Run::barriers_and_warps(const std::string& name) {
    if (name == "half_block_barrier") {
        launch(half_block_barrier_kernel, 1, threads, 0, y);
        want.assign(threads, 1);
    } else if (name == "two_barriers") {
        launch(two_barriers_kernel, 1, threads, 0, y);
        for (unsigned i = 0; i < threads; ++i) want[i] = i < 128 ? 2 : 3;
    } else if (name == "early_return") {
        launch(early_return_kernel, 1, threads, 0, y, 200u);
        for (unsigned i = 0; i < 200; ++i) want[i] = 1;
    } else if (name == "divergent_shuffle") {
        launch(divergent_shuffle_kernel, 1, threads, 0, y);
    } else if (name == "shuffle_outside_mask") {
        launch(outside_mask_kernel, 1, threads, 0, y);
    } else {
        return false;
    }
    return true;
}

bool Run::memory(const std::string& name) {
    if (name == "dynamic_out_of_bounds") {
        launch(dynamic_out_of_bounds_kernel, 1, threads, threads * 4, y);
        want.assign(threads, 1);
        want[0] = NAN;
    } else if (name == "global_out_of_bounds") {
        launch(global_out_of_bounds_kernel, 2, threads, 0, y, threads);
        want.assign(threads, 1);
    } else if (name == "misaligned_vector") {
        launch(misaligned_kernel, 1, 64, 0, x, y);
        for (unsigned i = 0; i < 64; ++i) want[i] = host_x[1 + i * 4];
    } else if (name == "uninitialised_shared") {
        launch(uninitialised_kernel, 1, threads, 0, y);
        want.assign(threads, 1);
    } else if (name == "index_overflow") {
        launch(overflow_kernel, 1, threads, 0, y, 1 << 30);
    } else if (name == "host_touches_device") {
        want[0] = y[0];
    } else if (name == "use_after_free") {
        cuda::device_free(y);
        launch(copy_kernel, 1, threads, 0, x, y);
        y = static_cast<float*>(cuda::device_malloc(threads * 4));
        cuda::fill_zero(y, threads * 4);
    } else {
        return false;
    }
    return true;
}

bool Run::races(const std::string& name) {
    if (name == "no_syncthreads" || name == "shared_out_of_bounds" || name == "good") {
        launch(name == "good"             ? sum_kernel<Fault::none>
               : name == "no_syncthreads" ? sum_kernel<Fault::no_barrier>
                                          : sum_kernel<Fault::shared_out_of_bounds>,
               4, threads, 0, x, y);
        for (unsigned i = 0; i < threads * 4; ++i) want[i / threads] += host_x[i];
    } else if (name == "shared_reuse") {
        launch(reuse_kernel, 1, threads, 0, x, y);
        for (unsigned i = 0; i < threads; ++i) want[i] = host_x[i] * 2;
    } else if (name == "no_syncwarp") {
        launch(no_syncwarp_kernel, 1, 32, 0, x, y);
        for (unsigned i = 0; i < 32; ++i) want[i] = host_x[i ^ 1];
    } else if (name == "block_race") {
        launch(block_race_kernel, 8, 32, 0, y);
        want[0] = 8;
    } else if (name == "no_fence") {
        auto* partial = static_cast<float*>(cuda::device_malloc(64));
        auto* ticket = static_cast<unsigned*>(cuda::device_malloc(4));
        cuda::fill_zero(ticket, 4);
        launch(no_fence_kernel, 4, 32, 0, x, y, partial, ticket);
        for (unsigned i = 0; i < 4; ++i) want[i] = host_x[i];
    } else {
        return false;
    }
    return true;
}

bool Run::go(const std::string& name) { return barriers_and_warps(name) || memory(name) || races(name); }

}  // namespace

int main(int argc, char** argv) {
    const std::string name = argc > 1 ? argv[1] : "good";
    Run run;
    run.host_x.resize(threads * 4);
    for (std::size_t i = 0; i < run.host_x.size(); ++i) run.host_x[i] = float(i % 37);
    run.want.resize(threads);
    run.x = static_cast<float*>(cuda::device_malloc(run.host_x.size() * 4));
    run.y = static_cast<float*>(cuda::device_malloc(threads * 4));
    cuda::copy_to_device(run.x, run.host_x.data(), run.host_x.size() * 4);
    cuda::fill_zero(run.y, threads * 4);
    try {
        if (!run.go(name)) {
            std::puts("unknown");
            return 9;
        }
    } catch (const emulation::Error& e) {
        std::printf("stopped by the emulator: %s\n", e.what());
        return 3;
    }
    std::vector<float> got(threads);
    cuda::copy_to_host(got.data(), run.y, threads * 4);
    for (unsigned i = 0; i < threads; ++i) {
        if (got[i] == run.want[i] || (std::isnan(got[i]) && std::isnan(run.want[i]))) continue;
        std::printf("wrong result at %u: %g, expected %g\n", i, double(got[i]), double(run.want[i]));
        return 4;
    }
    std::puts("ok");
}
