// Register tile of the GEMM kernels: R rows of C vectors of sums stay in registers over all steps of k.
#pragma once

#include "cpu/gemm/pack.h"

namespace mezzo::cpu {
namespace {

constexpr int mr = MEZZO_MR, nr = MEZZO_NR;
static_assert(nr % lanes == 0 && mr % 2 == 0 && mr >= 4);

// sum + x y for one step of k or a pair of steps.
MEZZO_INLINE Vector multiply_add(Vector sum, Vector x, Vector y) {
#if MEZZO_DEPTH == 2
    return (Vector)_mm512_dpbf16_ps((__m512)sum, (__m512bh)x, (__m512bh)y);
#else
    return sum + x * y;
#endif
}

// A vector with the bits of one slot in every lane.
MEZZO_INLINE Vector repeat(const float* slot) {
#if MEZZO_DEPTH == 2
    std::int32_t bits;
    __builtin_memcpy(&bits, slot, sizeof bits);
    return (Vector)(bits - IntN<lanes>{});
#else
    return broadcast<lanes>(*slot);
#endif
}

// Location of the R rows of op(A): in a packed panel, or unpacked, lda floats apart.
enum class RowsOfA { packed, in_place };

// Prefetches the next lines.
MEZZO_INLINE void fetch(Prefetch& ahead) {
    for (int n = ahead.pace; n > 0 && ahead.at < ahead.count; --n) {
        Prefetch::Region& region = ahead.regions[ahead.at];
        __builtin_prefetch(region.start + region.line * 64, 0, 2);
        if (++region.line < region.lines) continue;
        region.line = 0;
        region.start += region.pitch;
        if (--region.runs == 0) ++ahead.at;
    }
}

// One step of k: sum[r][c] += a(r) b(c). a(r) is a vector with one element in every lane, b(c) a vector.
template <int R, int C, class A, class B>
MEZZO_INLINE void add_step(Vector (&sum)[R][C], const A& a, const B& b) {
    Vector y[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) y[c] = b(c);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
        const Vector x = a(r);
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) sum[r][c] = multiply_add(sum[r][c], x, y[c]);
    }
}

// t = sum, or t += sum.
template <int R, int C>
MEZZO_INLINE void store_sums(const Vector (&sum)[R][C], float* t, std::int64_t ldt, bool accumulate) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) {
            float* to = t + r * ldt + c * lanes;
            store<lanes>(to, accumulate ? sum[r][c] + load<lanes>(to) : sum[r][c]);
        }
}

template <int R, int C, RowsOfA where> void micro_kernel(std::int64_t k, const float* a, std::int64_t lda,
                                                         const float* b, std::int64_t ldb, float* t,
                                                         std::int64_t ldt, bool accumulate, Prefetch& ahead) {
    constexpr bool in_place = where == RowsOfA::in_place;
    // The old sums are prefetched here and added at the end, so that no multiplication waits for them.
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) __builtin_prefetch(t + r * ldt);
    Vector sum[R][C] = {};
    for (std::int64_t left = k; left > 0; left -= Prefetch::slots) {
        fetch(ahead);
        const std::int64_t slots = smaller(left, Prefetch::slots);
        for (std::int64_t p = 0; p < slots; ++p, a += in_place ? 1 : mr, b += ldb)
            add_step(
                sum, [&](int r) { return repeat(in_place ? a + r * lda : a + r); },
                [&](int c) { return load<lanes>(b + c * lanes); });
    }
    store_sums(sum, t, ldt, accumulate);
}

using MicroKernel = void (*)(std::int64_t, const float*, std::int64_t, const float*, std::int64_t, float*,
                             std::int64_t, bool, Prefetch&);

// The kernel for `rows` <= R and `vectors` <= C.
template <int R, int C> MEZZO_INLINE MicroKernel pick(std::int64_t rows, std::int64_t vectors) {
    if constexpr (C > 1) {
        if (vectors < C) return pick<R, C - 1>(rows, vectors);
    }
    if constexpr (R > 1) {
        if (rows < R) return pick<R - 1, C>(rows, vectors);
    }
    return micro_kernel<R, C, RowsOfA::packed>;
}
// The kernel for mr rows.
template <RowsOfA where, int C = nr / lanes> MEZZO_INLINE MicroKernel pick_full(std::int64_t vectors) {
    if constexpr (C > 1) {
        if (vectors < C) return pick_full<where, C - 1>(vectors);
    }
    return micro_kernel<mr, C, where>;
}

MEZZO_INLINE std::int64_t vectors_from(std::int64_t j, std::int64_t columns) {
    return smaller(nr / lanes, (columns - j + lanes - 1) / lanes);
}

template <int = 0> void tile(const float* a, std::int64_t panel_k, const TileColumnsOfB& b, std::int64_t k,
                             std::int64_t rows, std::int64_t columns, float* t, std::int64_t ldt,
                             bool accumulate, Prefetch& ahead) {
    for (std::int64_t j = 0; j < columns; j += nr) {
        const std::int64_t vectors = vectors_from(j, columns);
        const float* const panel = b.data + j / nr * b.panel;
        const MicroKernel full = pick_full<RowsOfA::packed>(vectors);
        for (std::int64_t i = 0; i < rows; i += mr) {
            const MicroKernel kernel = rows - i < mr ? pick<mr, nr / lanes>(rows - i, vectors) : full;
            kernel(k, a + i * panel_k, 0, panel, b.step, t + i * ldt + j, ldt, accumulate, ahead);
        }
    }
}

template <int = 0> void tile_in_place(const float* a, std::int64_t lda, const TileColumnsOfB& b,
                                      std::int64_t k, std::int64_t rows, std::int64_t columns, float* t,
                                      std::int64_t ldt, bool accumulate, Prefetch& ahead) {
    for (std::int64_t j = 0; j < columns; j += nr) {
        const float* const panel = b.data + j / nr * b.panel;
        const MicroKernel kernel = pick_full<RowsOfA::in_place>(vectors_from(j, columns));
        for (std::int64_t i = 0; i < rows; i += mr)
            kernel(k, a + i * lda, lda, panel, b.step, t + i * ldt + j, ldt, accumulate, ahead);
    }
}

// The sum of the steps of each slot.
MEZZO_INLINE Vector steps_of(Vector slots) {
#if MEZZO_DEPTH == 2
    const UintN<lanes> bits = (UintN<lanes>)slots;
    return (Vector)(bits << 16) + (Vector)(bits & 0xffff0000u);
#else
    return slots;
#endif
}

// Sums of the rows of panels. In float32 so few slots are added that the rounding of a sum does not grow with
// k. Lines that the last panel lacks may hold anything; their sums are dropped.
template <int = 0> void panel_sums(const float* panels, std::int64_t slots, std::int64_t rows, double* sums) {
    constexpr int together = 8, vectors = together * mr / lanes;  // slots, and vectors of them
    constexpr std::int64_t most = 32 * together;
    static_assert(together * mr % lanes == 0);
    for (std::int64_t i = 0; i < rows; i += mr)
        for (std::int64_t left = slots; left > 0; left -= most) {
            Vector sum[vectors] = {};
            std::int64_t p = smaller(left, most);
            for (; p >= together; p -= together, panels += together * mr)
#pragma GCC unroll 16
                for (int v = 0; v < vectors; ++v) sum[v] += steps_of(load<lanes>(panels + v * lanes));
            float last[together * mr] = {}, part[together * mr];
            for (; p > 0; --p, panels += mr)
                __builtin_memcpy(last + (p - 1) * mr, panels, mr * sizeof(float));
            double total[mr] = {};
            for (int v = 0; v < vectors; ++v)
                store<lanes>(part + v * lanes, sum[v] + steps_of(load<lanes>(last + v * lanes)));
            for (int q = 0; q < together; ++q)
                for (int r = 0; r < mr; ++r) total[r] += double(part[q * mr + r]);
            for (std::int64_t r = 0; r < mr && i + r < rows; ++r) sums[i + r] += total[r];
        }
}

}  // namespace
}  // namespace mezzo::cpu
