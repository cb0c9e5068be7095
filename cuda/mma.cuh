// Tensor Core and asynchronous copy instructions. Inline PTX is found here, in approximate.cuh and in
// packs.cuh only. tests/emulation/mma.h does the same as this file on the CPU, tests/cuda/mma_test.cpp tests
// each wrapper alone.
//
// On compute capability 8.0 and later each wrapper is one instruction. 7.5 has neither asynchronous copies
// nor products of 16 columns: a copy is complete when it returns, and a product is two of 8 columns. 7.5 has
// no Tensor Cores for bfloat16 (multiplies_on_tensor_cores()).
//
// The lanes of a warp share an m16n8k16 product as in the PTX manual. With g = lane / 4 and t = lane % 4,
// lane l holds
//   A (16 x 16)  rows g and g + 8, columns 2t, 2t + 1, 2t + 8, 2t + 9
//   B (16 x 8)   column g, rows 2t, 2t + 1, 2t + 8, 2t + 9
//   D (16 x 8)   d[e]: row g + e / 2 * 8, column 2t + e % 2
// so two adjacent D tiles, rounded to 16 bit, are an A (pack_operand).
#pragma once

#include "cuda/kernel.cuh"

#if !defined(__CUDACC__)
#include "tests/emulation/mma.h"
#endif

// Whether the kernel that is being compiled is for compute capability 8.0 or later.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define MEZZO_AMPERE 0
#else
#define MEZZO_AMPERE 1
#endif

namespace mezzo::cuda {

// Two 16-bit elements per register, the first in the low half.
using Frag4 = Vec<std::uint32_t, 4>;
using Frag2 = Vec<std::uint32_t, 2>;

#if defined(__CUDACC__)

__device__ inline unsigned shared_address(const void* p) {
    return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

// Copies `bytes` (0 to 16) from global memory and fills the rest of the 16 bytes in shared memory with zeros.
// Both addresses are multiples of 16. The calling thread sees the data after a wait that covers the copy,
// other threads after a barrier that follows the wait. A thread must wait for all its copies before it
// returns.
__device__ inline void copy_async(void* shared, const void* global, unsigned bytes = 16) {
#if MEZZO_AMPERE
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global),
                 "r"(bytes)
                 : "memory");
#else
    uint4 value{};
    if (bytes == 16) {
        value = *static_cast<const uint4*>(global);
    } else {
        const auto* from = static_cast<const std::uint8_t*>(global);
        std::uint32_t words[4]{};
        for (unsigned i = 0; i < bytes; ++i) words[i / 4] |= std::uint32_t(from[i]) << i % 4 * 8;
        value = {words[0], words[1], words[2], words[3]};
    }
    *static_cast<uint4*>(shared) = value;
#endif
}

// Ends a group of copies.
__device__ inline void copy_async_commit() {
#if MEZZO_AMPERE
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most the last `pending` groups of this thread are under way.
template <int pending> __device__ void copy_async_wait() {
#if MEZZO_AMPERE
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
#endif
}

// Four 8 x 8 matrices of 16-bit elements from shared memory: lane l gives the address of row l % 8 of matrix
// l / 8, a multiple of 16. Register m gets the elements (l / 4, 2 (l % 4)) and the next of matrix m, or of
// its transpose.
__device__ inline Frag4 load_matrices(const void* row) {
    Frag4 r;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r.v[0]), "=r"(r.v[1]), "=r"(r.v[2]), "=r"(r.v[3])
                 : "r"(shared_address(row))
                 : "memory");
    return r;
}
__device__ inline Frag4 load_matrices_transposed(const void* row) {
    Frag4 r;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r.v[0]), "=r"(r.v[1]), "=r"(r.v[2]), "=r"(r.v[3])
                 : "r"(shared_address(row))
                 : "memory");
    return r;
}

// d += a b in float32.
__device__ inline void multiply_add(float16_t, float (&d)[4], const Frag4& a, const Frag2& b) {
#if !MEZZO_AMPERE
    for (int half = 0; half < 2; ++half)
        asm volatile(
            "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
            "{%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a.v[2 * half]), "r"(a.v[2 * half + 1]), "r"(b.v[half]));
#else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a.v[0]), "r"(a.v[1]), "r"(a.v[2]), "r"(a.v[3]), "r"(b.v[0]), "r"(b.v[1]));
#endif
}
__device__ inline void multiply_add(bfloat16_t, float (&d)[4], const Frag4& a, const Frag2& b) {
#if !MEZZO_AMPERE
    __trap();
#else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a.v[0]), "r"(a.v[1]), "r"(a.v[2]), "r"(a.v[3]), "r"(b.v[0]), "r"(b.v[1]));
#endif
}

#else

#define MEZZO_SITE emulation::Site site = emulation::Site::current()
inline void copy_async(void* shared, const void* global, unsigned bytes = 16, MEZZO_SITE) {
    emulation::copy_async(shared, global, 16, bytes, site);
}
inline void copy_async_commit() { emulation::copy_async_commit(); }
template <int pending> void copy_async_wait() { emulation::copy_async_wait(pending); }
inline Frag4 load_matrices(const void* row, MEZZO_SITE) {
    Frag4 r;
    emulation::load_matrices(row, false, r.v, site);
    return r;
}
inline Frag4 load_matrices_transposed(const void* row, MEZZO_SITE) {
    Frag4 r;
    emulation::load_matrices(row, true, r.v, site);
    return r;
}
template <class T> void multiply_add(T, float (&d)[4], const Frag4& a, const Frag2& b, MEZZO_SITE) {
    emulation::multiply_add_16x8x16<T>(d, a.v, b.v, site);
}
#undef MEZZO_SITE

#endif

// Whether a device's Tensor Cores multiply this dtype. Kernels that use multiply_add() are launched for no
// other.
inline bool multiplies_on_tensor_cores(int device, Dtype dtype) {
    return dtype == float16 || (dtype == bfloat16 && kernel_capability(device) >= 80);
}

// The value that MEZZO_AMPERE has in the kernels that the current device runs.
inline bool launches_ampere_kernels() {
#if defined(__CUDACC__)
    return kernel_capability(current_device()) >= 80;
#else
    return true;
#endif
}

template <class P> __device__ std::uint32_t word_of(const P& pair) {
    std::uint32_t word;
    static_assert(sizeof pair == sizeof word);
    std::memcpy(&word, &pair, sizeof word);
    return word;
}

// Two floats rounded to T as one register.
template <class T> __device__ std::uint32_t pack_pair(float low, float high) {
#if defined(__CUDACC__)  // one instruction for both
    if constexpr (std::is_same_v<T, float16_t>)
        return word_of(__floats2half2_rn(low, high));
    else
        return word_of(__floats2bfloat162_rn(low, high));
#else
    return word_of(Vec<T, 2>{{from_float<T>(low), from_float<T>(high)}});
#endif
}

// The 16 x 16 operand A, made of two adjacent D tiles.
template <class T> __device__ Frag4 pack_operand(const float (&left)[4], const float (&right)[4]) {
    return {{pack_pair<T>(left[0], left[1]), pack_pair<T>(left[2], left[3]), pack_pair<T>(right[0], right[1]),
             pack_pair<T>(right[2], right[3])}};
}

}  // namespace mezzo::cuda
