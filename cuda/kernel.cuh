// The device language of kernels, and the only include that they need for it. nvcc compiles kernel sources
// for the GPU; any other compiler takes the emulator of the tests, which runs every thread of a block on the
// CPU. Rules for kernels:
//  - shared memory through MEZZO_SHARED / MEZZO_DYN_SHARED, launches through launch(); no CUDA header
//  - every thread of a block reaches the same __syncthreads(); all lanes of a mask make the same warp call
//  - blocks are 1-D and a multiple of 32 threads where the helpers below are used
//  - lanes hand memory to each other across __syncwarp(), never across a shuffle alone
//  - blocks hand memory to each other only by write, __threadfence(), atomic in the one and atomic,
//    __threadfence(), read in the other, with the second fence in the thread that did the atomic
//  - grid-stride loops: a kernel is right for every grid size
//  - 16-bit types are storage: compute in float through to_float() and from_float<T>()
//  - dtypes for storage only reach no kernel but those of copy.cu, and float8 those of gemm/quantize.cu and
//    of the checks of GEMM algorithms
//  - wide accesses through Vec<T, N> of the same T
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/round_to_odd.h"
#include "cuda/runtime/runtime.h"
#include "mezzo/dtype.h"

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

// `T name dims` in shared memory: MEZZO_SHARED(float, tile, [32][33]). Declared as bytes, because T may have
// a constructor.
#define MEZZO_SHARED(T, name, ...)                                            \
    using name##_type = T __VA_ARGS__;                                        \
    __shared__ __align__(16) unsigned char name##_bytes[sizeof(name##_type)]; \
    name##_type& name = *reinterpret_cast<name##_type*>(name##_bytes)
// The launch's dynamic shared memory as T*; once per kernel.
#define MEZZO_DYN_SHARED(T, name)                                          \
    extern __shared__ __align__(128) unsigned char mezzo_dynamic_shared[]; \
    T* const name = reinterpret_cast<T*>(mezzo_dynamic_shared)
// Marks a loop over an array that must stay in registers.
#define MEZZO_UNROLL _Pragma("unroll")
// Marks a large kernel argument that is indexed: threads read it where it is, and make no copy.
#define MEZZO_GRID_CONSTANT __grid_constant__
#else
#include "tests/emulation/intrinsics.h"

#define MEZZO_SHARED(T, name, ...)     \
    static const char name##_key = 0;  \
    using name##_type = T __VA_ARGS__; \
    name##_type& name = mezzo::emulation::shared<name##_type>(&name##_key)
#define MEZZO_DYN_SHARED(T, name) T* const name = static_cast<T*>(mezzo::emulation::dynamic_shared())
#define MEZZO_UNROLL
#define MEZZO_GRID_CONSTANT
#endif

namespace mezzo::cuda {

// Bytes of kernel arguments, from CUDA 12.1 and compute capability 7.0 on.
inline constexpr std::size_t argument_limit = 32764;

// Runs `kernel` on the current stream; an empty grid launches nothing. `shared` is dynamic shared memory in
// bytes.
template <class... P> void launch(void (*kernel)(P...), dim3 grid, dim3 block, std::size_t shared,
                                  std::type_identity_t<P>... args) {
    static_assert((std::is_trivially_copyable_v<P> && ...), "kernel arguments are copied as bytes");
    static_assert((sizeof(P) + ... + 0) <= argument_limit, "kernel arguments are limited to 32,764 bytes");
    if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
    count_launch();
#if defined(__CUDACC__)
    if (shared > 48 * 1024) allow_dynamic_shared(reinterpret_cast<const void*>(kernel), shared);
    kernel<<<grid, block, shared, static_cast<cudaStream_t>(current_stream())>>>(args...);
    check_launch();
#else
    emulation::launch(kernel, grid, block, shared, args...);
#endif
}

// Blocks for a grid-stride loop over n items, one item per thread and round; block = 1 for one block per
// item.
inline unsigned grid_for(std::int64_t n, unsigned block = 256) {
    const std::int64_t blocks = (n + block - 1) / block, limit = grid_limit(block);
    return static_cast<unsigned>(blocks < limit ? blocks : limit);
}

// Threads for a block that works on n items together: a multiple of 32, at most `limit`.
inline unsigned block_for(std::int64_t n, unsigned limit = 256) {
    if (n >= limit) return limit;
    return n <= 32 ? 32 : static_cast<unsigned>((n + 31) / 32 * 32);
}

// N elements that move as one access of up to 16 bytes; the address must be a multiple of the size.
template <class T, int N> struct alignas(sizeof(T) * N) Vec { T v[N]; };

// The type sums and functions of T are computed in: float for the storage types, else T itself.
template <class T> using Compute = std::conditional_t<is_storage_type<T>, float, T>;

// The value as float; exact for the storage types.
template <class T> __device__ float to_float(T x) {
#if defined(__CUDACC__)
    if constexpr (std::is_same_v<T, float16_t>)
        return __half2float(__ushort_as_half(x.bits));
    else if constexpr (std::is_same_v<T, bfloat16_t>)
        return __bfloat162float(__ushort_as_bfloat16(x.bits));
    else
#endif
        return static_cast<float>(x);
}

// A float as T, rounded to nearest even.
template <class T> __device__ T from_float(float x) {
#if defined(__CUDACC__)
    if constexpr (std::is_same_v<T, float16_t>) {
        T y;
        y.bits = __half_as_ushort(__float2half_rn(x));
        return y;
    } else if constexpr (std::is_same_v<T, bfloat16_t>) {
        T y;
        y.bits = __bfloat16_as_ushort(__float2bfloat16_rn(x));
        return y;
    } else
#endif
        return static_cast<T>(x);
}

// The low eight bits of x as int64: NaN gives 0, and numbers beyond int64 give its ends.
template <class T> __device__ std::int8_t low_byte(T x) {
    if (!(x > T(-0x1p63))) return 0;
    return x < T(0x1p63) ? static_cast<std::int8_t>(static_cast<std::int64_t>(x)) : std::int8_t(-1);
}

// Any element type to any other, as the dtype conversion of tensors does it: to boolean means "is not zero".
template <class To, class From> __device__ To convert(From x) {
    if constexpr (std::is_same_v<To, From>)
        return x;
    else if constexpr (is_storage_type<From>)
        return convert<To>(to_float(x));
    else if constexpr (is_storage_type<To> && std::is_same_v<From, double>)
        return from_float<To>(round_to_odd(x));
    else if constexpr (is_storage_type<To> && std::is_integral_v<From> && sizeof(From) >= 4)
        return from_float<To>(round_to_odd(static_cast<std::int64_t>(x)));
    else if constexpr (is_storage_type<To>)
        return from_float<To>(static_cast<float>(x));
    else if constexpr (std::is_same_v<To, bool>)
        return x != From(0);
    else if constexpr (std::is_same_v<To, std::int8_t> && std::is_floating_point_v<From>)
        return low_byte(x);
    else
        return static_cast<To>(x);
}

// The value of lane (own lane ^ distance); T is any trivially copyable type of whole 4-byte words.
template <class T> __device__ T shuffle_xor(const T& value, int distance) {
    static_assert(sizeof(T) % 4 == 0 && std::is_trivially_copyable_v<T>);
    unsigned words[sizeof(T) / 4];
    std::memcpy(words, &value, sizeof(T));
    for (unsigned& word : words) word = __shfl_xor_sync(0xffffffffu, word, distance);
    T result;
    std::memcpy(&result, words, sizeof(T));
    return result;
}

// op over the 32 lanes of a warp; every lane gets the result. Order is fixed: the result is reproducible.
template <class T, class Op> __device__ T warp_reduce(T value, Op op) {
    for (int distance = 16; distance > 0; distance /= 2) value = op(value, shuffle_xor(value, distance));
    return value;
}

// op over a 1-D block; every thread gets the result. All threads call it; it may be called again at once.
template <class T, class Op> __device__ T block_reduce(T value, T identity, Op op) {
    MEZZO_SHARED(T, partial, [32]);
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    value = warp_reduce(value, op);
    __syncthreads();  // the previous call's partial results have been read
    if (lane == 0) partial[warp] = value;
    __syncthreads();
    return warp_reduce(lane < warps ? partial[lane] : identity, op);
}

struct Sum {
    template <class T> __device__ T operator()(T a, T b) const { return a + b; }
};
// A NaN on either side wins, as in torch.amax.
struct Max {
    template <class T> __device__ T operator()(T a, T b) const { return a > b || a != a ? a : b; }
};
struct Min {
    template <class T> __device__ T operator()(T a, T b) const { return a < b || a != a ? a : b; }
};

// This thread's first item and the step of a grid-stride loop over a 1-D grid.
__device__ inline std::int64_t first_item() { return std::int64_t(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ inline std::int64_t item_step() { return std::int64_t(gridDim.x) * blockDim.x; }

}  // namespace mezzo::cuda
