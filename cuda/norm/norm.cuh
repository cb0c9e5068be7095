// Row access for normalisation and its gradient: rows of float held in registers, four adjacent elements per
// access, a warp or a block per row.
#pragma once

#include "cuda/elementwise/random_stream.cuh"
#include "cuda/reduce/rows.cuh"
#include "kernels/norm.h"

namespace mezzo::cuda {

inline constexpr int pack = 4;  // elements per access

// Elements i .. i + 3; i and the address are multiples of 4 elements.
template <class T> __device__ void load_pack(const T* p, std::int64_t i, float (&values)[pack]) {
    const auto v = *reinterpret_cast<const Vec<T, pack>*>(p + i);
    for (int k = 0; k < pack; ++k) values[k] = to_float(v.v[k]);
}
template <class T> __device__ void store_pack(T* p, std::int64_t i, const float (&values)[pack]) {
    Vec<T, pack> v;
    for (int k = 0; k < pack; ++k) v.v[k] = from_float<T>(values[k]);
    *reinterpret_cast<Vec<T, pack>*>(p + i) = v;
}
// Loads a pack of data that stays in the cache, such as weights: the dtype is known only when the kernel
// runs.
__device__ inline void load_pack(const AnyArray<float>& x, std::int64_t i, float (&values)[pack]) {
    visit_on_device<Dtypes::up_to_32bit>(
        x.dtype, [&]<class T>(std::type_identity<T>) { load_pack(static_cast<const T*>(x.p), i, values); });
}

// The same for the copy of a result.
__device__ inline void store_pack(const AnyArray<float>& y, std::int64_t i, const float (&values)[pack]) {
    if (y.dtype == float16)
        store_pack(static_cast<float16_t*>(y.p), i, values);
    else
        store_pack(static_cast<bfloat16_t*>(y.p), i, values);
}

inline bool packs_fit(const Tensor& x) {
    return !x.defined() || (x.dtype() != float64 &&
                            reinterpret_cast<std::uintptr_t>(raw(x)) % (pack * size_of(x.dtype())) == 0);
}
// Whether rows of `cols` elements of these tensors can be read in packs.
inline bool packs_fit(std::int64_t cols, In tensors) {
    bool fit = cols % pack == 0;
    for (const Tensor& x : tensors) fit = fit && packs_fit(x);
    return fit;
}

// First column of a thread's pack p of a row.
template <class Team> __device__ std::int64_t pack_column(int p) {
    return (Team::rank() + p * Team::size()) * pack;
}

// Dropout of elements, by the random stream of core/philox.h.
struct Dropping {
    RandomStream stream;
    std::uint32_t threshold;  // 0: nothing is dropped
    float scale;

    // Elements i .. i + 3 of the tensor, i a multiple of 4.
    __device__ void apply(std::int64_t i, float (&values)[pack]) const {
        if (threshold == 0) return;
        const PhiloxWords words = stream.block(i / 8);
        const bool upper = i % 8 != 0;
        const std::uint32_t first = upper ? words.v[2] : words.v[0], second = upper ? words.v[3] : words.v[1];
        const std::uint32_t half[pack] = {first & 0xffffu, first >> 16, second & 0xffffu, second >> 16};
        for (int k = 0; k < pack; ++k) values[k] = half[k] >= threshold ? values[k] * scale : 0.0f;
    }
};
Dropping dropping(const kernels::DropoutAddLayerNorm& at);

template <class C> struct TwoSums { C first, second; };
struct AddTwo {
    template <class C> __device__ TwoSums<C> operator()(const TwoSums<C>& a, const TwoSums<C>& b) const {
        return {a.first + b.first, a.second + b.second};
    }
};

// Threads for a block that covers a row of up to longest_in_registers columns with four packs per thread.
// Kernels are compiled for this size of block, which leaves each thread 128 registers.
inline constexpr unsigned longest_block = 512;
inline constexpr std::int64_t longest_in_registers = longest_block * 4 * pack;
inline unsigned block_over(std::int64_t cols) {
    return block_for((cols + 4 * pack - 1) / (4 * pack), longest_block);
}

}  // namespace mezzo::cuda
