// The AMX tile registers: thin functions over the instructions, or over a model of them in C++
// (MEZZO_TILE_MODEL), so that tests run the same kernels where the processor has no AMX. Everything has
// internal linkage; vector.h says why.
//
// Assembler statements rather than <amxtileintrin.h>: GCC's intrinsics take tile numbers as literal text, so
// that they cannot be template parameters, and its tile loads do not say that they read memory, so that the
// compiler may move a store to a panel behind the load that reads it.
#pragma once

#include <cstdint>

#include "cpu/isa/vector.h"

namespace mezzo::cpu {

namespace {

#if defined(MEZZO_TILE_MODEL)

// Eight tiles of 16 rows of 64 bytes, per thread.
struct TileModel {
    bool configured = false;
    alignas(64) unsigned char bytes[8][16][64];
};
inline thread_local TileModel tile_model;

class TileScope {
public:
    TileScope() {
        if (tile_model.configured) __builtin_trap();  // scopes do not nest
        tile_model.configured = true;
        __builtin_memset(tile_model.bytes, 0, sizeof tile_model.bytes);
    }
    ~TileScope() { tile_model.configured = false; }
    TileScope(const TileScope&) = delete;
    TileScope& operator=(const TileScope&) = delete;
};

MEZZO_INLINE auto& rows_of_tile(int t) {
    if (!tile_model.configured) __builtin_trap();  // as the instruction would: #UD
    return tile_model.bytes[t];
}
template <int T> void tile_zero() { __builtin_memset(rows_of_tile(T), 0, 1024); }
template <int T> void tile_load(const void* from, std::int64_t stride) {
    for (int r = 0; r < 16; ++r)
        __builtin_memcpy(rows_of_tile(T)[r], static_cast<const char*>(from) + r * stride, 64);
}
template <int T> void tile_load_once(const void* from, std::int64_t stride) { tile_load<T>(from, stride); }
template <int T> void tile_store(void* to, std::int64_t stride) {
    for (int r = 0; r < 16; ++r)
        __builtin_memcpy(static_cast<char*>(to) + r * stride, rows_of_tile(T)[r], 64);
}

// Denormals count as zero, whatever MXCSR says.
inline float tile_flush(float x) {
    std::uint32_t u;
    __builtin_memcpy(&u, &x, sizeof u);
    if ((u & 0x7f800000u) == 0) u &= 0x80000000u;
    __builtin_memcpy(&x, &u, sizeof u);
    return x;
}
inline float tile_widen(std::uint32_t bits) {
    float x;
    __builtin_memcpy(&x, &bits, sizeof x);
    return tile_flush(x);
}
// TDPBF16PS: the even and the odd steps of k are two chains of fused multiply-adds that start at zero; their
// sum is added to C.
template <int C, int A, int B> void tile_multiply() {
    const auto &a = rows_of_tile(A), &b = rows_of_tile(B);
    auto& c = rows_of_tile(C);
    for (int i = 0; i < 16; ++i) {
        float even[16] = {}, odd[16] = {};
        for (int p = 0; p < 16; ++p) {
            std::uint32_t x;
            __builtin_memcpy(&x, a[i] + 4 * p, sizeof x);
            for (int j = 0; j < 16; ++j) {
                std::uint32_t y;
                __builtin_memcpy(&y, b[p] + 4 * j, sizeof y);
                even[j] = tile_flush(__builtin_fmaf(tile_widen(x << 16), tile_widen(y << 16), even[j]));
                odd[j] = tile_flush(
                    __builtin_fmaf(tile_widen(x & 0xffff0000u), tile_widen(y & 0xffff0000u), odd[j]));
            }
        }
        for (int j = 0; j < 16; ++j) {
            float sum;
            __builtin_memcpy(&sum, c[i] + 4 * j, sizeof sum);
            sum = tile_flush(tile_flush(sum) + tile_flush(even[j] + odd[j]));
            __builtin_memcpy(c[i] + 4 * j, &sum, sizeof sum);
        }
    }
}

#else

// Scope in which the calling thread has eight tiles of 16 rows of 64 bytes. They are released at the end,
// because tiles in use make every switch of this thread save 8 KiB and keep the core from its deeper sleep
// states.
class TileScope {
public:
    TileScope() {
        struct alignas(64) {
            std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
            std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
            std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
        } const config;
        static_assert(sizeof config == 64);
        __asm__ volatile("ldtilecfg %0" ::"m"(config));  // reads all 64 bytes; GCC 12's intrinsic says 8
    }
    ~TileScope() { __asm__ volatile("tilerelease" ::: "memory"); }
    TileScope(const TileScope&) = delete;
    TileScope& operator=(const TileScope&) = delete;
};

template <int T> inline void tile_zero() { __asm__ volatile("tilezero %%tmm%c0" ::"i"(T)); }
template <int T> inline void tile_load(const void* from, std::int64_t stride) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(T) : "memory");
}
// Loads a tile with the hint that it is read only once, so that it does not evict others from the L1 cache.
template <int T> inline void tile_load_once(const void* from, std::int64_t stride) {
    __asm__ volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(T) : "memory");
}
template <int T> inline void tile_store(void* to, std::int64_t stride) {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(T) : "memory");
}
// C += A B; a row of tile B holds a pair of rows of the matrix.
template <int C, int A, int B> inline void tile_multiply() {
    __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}

#endif

}  // namespace
}  // namespace mezzo::cpu
