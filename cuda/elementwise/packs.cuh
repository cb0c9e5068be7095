// Stores of several adjacent elements that are one access for certain.
#pragma once

#include "cuda/kernel.cuh"

namespace mezzo::cuda {

// p[0] ... p[N - 1] = x in one access of up to 16 bytes; p must be a multiple of its size. nvcc makes an
// assignment to a Vec several accesses of 4 bytes where it has computed the elements one by one.
template <class T, int N> __device__ void store_vec(T* p, const Vec<T, N>& x) {
#if defined(__CUDACC__)
    if constexpr (sizeof(x) == 16) {
        uint4 w;
        std::memcpy(&w, &x, sizeof w);
        asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};"
                     :
                     : "l"(__cvta_generic_to_global(p)), "r"(w.x), "r"(w.y), "r"(w.z), "r"(w.w)
                     : "memory");
        return;
    } else if constexpr (sizeof(x) == 8) {
        uint2 w;
        std::memcpy(&w, &x, sizeof w);
        asm volatile("st.global.v2.b32 [%0], {%1, %2};"
                     :
                     : "l"(__cvta_generic_to_global(p)), "r"(w.x), "r"(w.y)
                     : "memory");
        return;
    }
#endif
    *reinterpret_cast<Vec<T, N>*>(p) = x;
}

}  // namespace mezzo::cuda
