// Random numbers and dropout, a part of loops_kernel.h.
#pragma once

#include "cpu/elementwise/loops.h"

#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace mezzo::cpu {
namespace {

// A group is as many Philox blocks as a vector has 64-bit lanes, a block per lane: every 32-bit value is the
// lower half of its lane. Upper halves hold anything, because the multiplication ignores them.
#if defined(__AVX512F__)
constexpr int philox_lanes = 8;
#define MEZZO_LANE_NUMBERS 0, 1, 2, 3, 4, 5, 6, 7
#elif (defined(__SSE2__) && !defined(__AVX2__)) || defined(__aarch64__)
constexpr int philox_lanes = 2;
#define MEZZO_LANE_NUMBERS 0, 1
#else
constexpr int philox_lanes = 4;
#define MEZZO_LANE_NUMBERS 0, 1, 2, 3
#endif
typedef std::uint64_t Lanes __attribute__((vector_size(8 * philox_lanes)));

MEZZO_HD Lanes multiply_low_halves(const Lanes& a, const Lanes& b) {
#if defined(__AVX512F__)
    return (Lanes)_mm512_maskz_mul_epu32(0xff, (__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (Lanes)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
    return (Lanes)_mm_mul_epu32((__m128i)a, (__m128i)b);
#elif defined(__aarch64__)
    return (Lanes)vmull_u32(vmovn_u64((uint64x2_t)a), vmovn_u64((uint64x2_t)b));
#else
    return (a & 0xffffffffu) * (b & 0xffffffffu);
#endif
}

// Stores a group: c[j] is word j of its blocks; in memory the words of a block are neighbours.
MEZZO_HD void store_group(std::uint32_t* words, const Lanes (&c)[4]) {
    const Lanes first = (c[0] & 0xffffffffu) | c[1] << 32, second = (c[2] & 0xffffffffu) | c[3] << 32;
#if defined(__AVX512F__)
    const Lanes low = __builtin_shufflevector(first, second, 0, 8, 1, 9, 2, 10, 3, 11),
                high = __builtin_shufflevector(first, second, 4, 12, 5, 13, 6, 14, 7, 15);
#elif (defined(__SSE2__) && !defined(__AVX2__)) || defined(__aarch64__)
    const Lanes low = __builtin_shufflevector(first, second, 0, 2),
                high = __builtin_shufflevector(first, second, 1, 3);
#else
    const Lanes low = __builtin_shufflevector(first, second, 0, 4, 1, 5),
                high = __builtin_shufflevector(first, second, 2, 6, 3, 7);
#endif
    __builtin_memcpy(words, &low, sizeof low);
    __builtin_memcpy(words + 2 * philox_lanes, &high, sizeof high);
}

// Computes `groups` groups at once, so that their chains of multiplications overlap, and writes the first
// `count` blocks.
template <int groups> MEZZO_HD void philox_groups(std::uint32_t* words, std::uint64_t key,
                                                  std::uint64_t counter, std::int64_t count) {
    const Lanes m0 = Lanes{} + 0xD2511F53u, m1 = Lanes{} + 0xCD9E8D57u;
    Lanes at = Lanes{MEZZO_LANE_NUMBERS} + counter, c[groups][4] = {};
    for (int i = 0; i < groups; ++i, at += philox_lanes) c[i][0] = at, c[i][1] = at >> 32;
    Lanes k0 = Lanes{} + key, k1 = Lanes{} + (key >> 32);
    for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u)
        for (int i = 0; i < groups; ++i) {
            const Lanes p0 = multiply_low_halves(c[i][0], m0), p1 = multiply_low_halves(c[i][2], m1);
            c[i][0] = (p1 >> 32) ^ c[i][1] ^ k0;
            c[i][1] = p1;
            c[i][2] = (p0 >> 32) ^ c[i][3] ^ k1;
            c[i][3] = p0;
        }
    for (int i = 0; i < groups; ++i, count -= philox_lanes, words += 4 * philox_lanes) {
        if (count >= philox_lanes) {
            store_group(words, c[i]);
        } else if (count > 0) {
            std::uint32_t last[4 * philox_lanes];
            store_group(last, c[i]);
            __builtin_memcpy(words, last, std::uint64_t(count) * 16);
        }
    }
}

void philox_blocks(std::uint32_t* words, std::uint64_t key, std::uint64_t counter, std::int64_t blocks) {
    std::int64_t i = 0;
    for (; i + 4 * philox_lanes <= blocks; i += 4 * philox_lanes)
        philox_groups<4>(words + 4 * i, key, counter + std::uint64_t(i), 4 * philox_lanes);
    for (; i + philox_lanes < blocks; i += 2 * philox_lanes)
        philox_groups<2>(words + 4 * i, key, counter + std::uint64_t(i), blocks - i);
    if (i < blocks) philox_groups<1>(words + 4 * i, key, counter + std::uint64_t(i), blocks - i);
}

typedef std::uint16_t Half __attribute__((may_alias));  // of a word in memory, low half first

void kept(std::uint8_t* to, const std::uint32_t* words, std::int64_t first_half, std::int64_t n,
          std::uint32_t threshold) {
    const Half* const halves = reinterpret_cast<const Half*>(words) + first_half;
    if (threshold > 0xffff) {
        for (std::int64_t i = 0; i < n; ++i) to[i] = 0;
        return;
    }
    const auto least = std::uint16_t(threshold);
    MEZZO_VECTOR_LOOP for (std::int64_t i = 0; i < n; ++i) to[i] = halves[i] >= least;
}

void dropout(float* dst, const float* x, const std::uint32_t* words, std::int64_t n, std::uint32_t threshold,
             float scale) {
    const Half* const halves = reinterpret_cast<const Half*>(words);
    MEZZO_VECTOR_LOOP for (std::int64_t i = 0; i < n; ++i) dst[i] =
        std::uint32_t(halves[i]) >= threshold ? x[i] * scale : 0.0f;
}

// r = sqrt(-2 ln u1) and the angle 2 pi u2 of a point in the plane whose coordinates are independent normals;
// u1 in (0, 1].
void box_muller(float* dst, const std::uint32_t* words, std::int64_t pairs) {
    constexpr std::int64_t block = 128;
    float first[block], second[block];
    for (std::int64_t begin = 0; begin < pairs; begin += block) {
        const std::int64_t count = pairs - begin < block ? pairs - begin : block;
        const std::uint32_t* const from = words + 2 * begin;
        for (std::int64_t i = 0; i < count; ++i) {
            first[i] = float(std::int32_t((from[2 * i] >> 8) + 1)) * 0x1p-24f;
            second[i] = float(std::int32_t(from[2 * i + 1] >> 8)) * 0x1p-24f;
        }
        for (std::int64_t i = 0; i < count; ++i) {
            const float r = math::sqrt(-2.0f * math::log(first[i])), angle = 6.28318530718f * second[i];
            first[i] = r * math::cos(angle);
            second[i] = r * math::sin(angle);
        }
        float* const to = dst + 2 * begin;
        for (std::int64_t i = 0; i < count; ++i) {
            to[2 * i] = first[i];
            to[2 * i + 1] = second[i];
        }
    }
}

}  // namespace
}  // namespace mezzo::cpu
