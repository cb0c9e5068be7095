// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): a counter-based
// generator, so that any element of any random tensor can be computed alone, with the same result on every
// device.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define MEZZO_DEVICE_INLINE static __host__ __device__ __forceinline__
#else
#define MEZZO_DEVICE_INLINE static inline
#endif

namespace mezzo {

struct PhiloxWords {
    std::uint32_t v[4];
};

// Block `counter` of the stream `key`: 128 random bits. Internal linkage, because kernels for several ISAs
// include it.
MEZZO_DEVICE_INLINE PhiloxWords philox(std::uint64_t key, std::uint64_t counter,
                                       std::uint64_t counter_high = 0) {
    std::uint32_t c0 = std::uint32_t(counter), c1 = std::uint32_t(counter >> 32);
    std::uint32_t c2 = std::uint32_t(counter_high), c3 = std::uint32_t(counter_high >> 32);
    std::uint32_t k0 = std::uint32_t(key), k1 = std::uint32_t(key >> 32);
    for (int round = 0; round < 10; ++round) {
        const std::uint64_t p0 = std::uint64_t(0xD2511F53u) * c0, p1 = std::uint64_t(0xCD9E8D57u) * c2;
        c0 = std::uint32_t(p1 >> 32) ^ c1 ^ k0;
        c1 = std::uint32_t(p1);
        c2 = std::uint32_t(p0 >> 32) ^ c3 ^ k1;
        c3 = std::uint32_t(p0);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return {{c0, c1, c2, c3}};
}

// How a tensor of n elements uses the stream from block `offset` on:
// uniform, normal and integers: element i takes word i % 4 of block offset + i / 4;
// dropout: element i takes half-word i % 8 (low half first) of block offset + i / 8 and is dropped if that is
//   less than round(65536 p); the others are multiplied by 1 / (1 - p);
// uniform: low + philox_uniform(word) * (high - low), or the dtype's largest number below high if the former,
//   rounded to the dtype, is not below high; integers: low + (word * (high - low) >> 32);
// normal: elements 2j and 2j + 1 are mean + stddev r cos a and mean + stddev r sin a (Box and Muller) of
//   their two words w0, w1: r = sqrt(-2 ln(((w0 >> 8) + 1) / 2^24)), a = 2 pi (w1 >> 8) / 2^24.
// The result of philox_uniform() is in [0, 1).
MEZZO_DEVICE_INLINE float philox_uniform(std::uint32_t word) { return float(word >> 8) * 0x1p-24f; }
MEZZO_DEVICE_INLINE std::uint32_t philox_half(const PhiloxWords& words, int i) {
    return words.v[i >> 1] >> ((i & 1) * 16) & 0xffffu;
}

}  // namespace mezzo
