// GEMM kernels for products with few rows: the other operand is read once, unpacked.
#pragma once

#include "cpu/gemm/pack.h"

namespace mezzo::cpu {
namespace {

// y is contiguous along the columns of the result: four of its rows at a time are added to R rows of t.
template <int R, class T> void skinny_across(const float* x, std::int64_t ldx, const T* y, std::int64_t ldy,
                                             std::int64_t width, std::int64_t k, float* t, std::int64_t ldt) {
    for (std::int64_t p = 0; p < k || p == 0; p += 4) {
        const std::int64_t left = smaller(4, k - p);
        float f[R][4] = {};
        const T* row[4] = {};
        for (int q = 0; q < left; ++q) {
            row[q] = y + (p + q) * ldy;
            for (int r = 0; r < R; ++r) f[r][q] = x[r * ldx + p + q];
        }
        for (std::int64_t j = 0; j < width; j += lanes) {
            const std::int64_t columns = smaller(lanes, width - j);
            Vector v[4] = {};
#pragma GCC unroll 4
            for (int q = 0; q < 4; ++q)
                if (q < left)
                    v[q] =
                        columns == lanes ? load<lanes>(row[q] + j) : load_first<lanes>(row[q] + j, columns);
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) {
                float* to = t + r * ldt + j;
                Vector sum = p == 0 ? Vector{} : load<lanes>(to);
#pragma GCC unroll 4
                for (int q = 0; q < 4; ++q) sum += broadcast<lanes>(f[r][q]) * v[q];
                store<lanes>(to, sum);
            }
        }
    }
}

MEZZO_INLINE float horizontal_sum(const Vector& v) {
    float f[lanes];
    store<lanes>(f, v);
#pragma GCC unroll 4
    for (int n = lanes / 2; n > 0; n /= 2)
#pragma GCC unroll 8
        for (int i = 0; i < n; ++i) f[i] += f[i + n];
    return f[0];
}

// Dot products of R rows of x with J lines of y, which is contiguous along k. x is zero behind k. There is
// one copy of each for all callers: the cost of a call is negligible next to its loop.
template <int R, int J, class T> [[gnu::noinline]] void dots(const float* x, std::int64_t ldx, const T* y,
                                                             std::int64_t ldy, std::int64_t k, float* t,
                                                             std::int64_t ldt) {
    Vector sum[R][J] = {};
    for (std::int64_t p = 0; p < k; p += lanes) {
        Vector u[R];
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) u[r] = load<lanes>(x + r * ldx + p);
#pragma GCC unroll 8
        for (int j = 0; j < J; ++j) {
            const T* from = y + j * ldy + p;
            // The lines of the next group, which are too short for the processor's own prefetching.
            if constexpr (R == 1 && J > 1) __builtin_prefetch(from + J * ldy);
            const Vector v = p + lanes <= k ? load<lanes>(from) : load_first<lanes>(from, k - p);
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) sum[r][j] += u[r] * v;
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int j = 0; j < J; ++j) t[r * ldt + j] = horizontal_sum(sum[r][j]);
}

// Two rows of x at a time: more would not leave enough registers for the sums of four lines.
template <int R, int J, class T> MEZZO_INLINE void dots_by_pairs(const float* x, std::int64_t ldx, const T* y,
                                                                 std::int64_t ldy, std::int64_t k, float* t,
                                                                 std::int64_t ldt) {
    if constexpr (R <= 2) {
        dots<R, J>(x, ldx, y, ldy, k, t, ldt);
    } else {
        dots<2, J>(x, ldx, y, ldy, k, t, ldt);
        dots<R - 2, J>(x + 2 * ldx, ldx, y, ldy, k, t + 2 * ldt, ldt);
    }
}

template <int R, class T> void skinny_along(const float* x, std::int64_t ldx, const T* y, std::int64_t ldy,
                                            std::int64_t width, std::int64_t k, float* t, std::int64_t ldt) {
    constexpr int step = R == 1 ? 8 : 4;
    std::int64_t j = 0;
    for (; j + step <= width; j += step) dots_by_pairs<R, step>(x, ldx, y + j * ldy, ldy, k, t + j, ldt);
    for (; j < width; ++j) dots_by_pairs<R, 1>(x, ldx, y + j * ldy, ldy, k, t + j, ldt);
}

template <int R> MEZZO_INLINE void skinny_rows(const float* x, std::int64_t ldx, const Operand& y,
                                               std::int64_t width, std::int64_t k, float* t,
                                               std::int64_t ldt) {
    with_type(y.type, y.data, [&](const auto* data) {
        if (y.along_k)
            skinny_along<R>(x, ldx, data, y.ld, width, k, t, ldt);
        else
            skinny_across<R>(x, ldx, data, y.ld, width, k, t, ldt);
    });
}

template <int = 0> void skinny(const float* x, std::int64_t ldx, std::int64_t rows, const Operand& y,
                               std::int64_t width, std::int64_t k, float* t, std::int64_t ldt) {
    for (std::int64_t i = 0; i < rows; i += 4) {
        const float* from = x + i * ldx;
        float* to = t + i * ldt;
        switch (smaller(4, rows - i)) {
            case 1:
                skinny_rows<1>(from, ldx, y, width, k, to, ldt);
                break;
            case 2:
                skinny_rows<2>(from, ldx, y, width, k, to, ldt);
                break;
            case 3:
                skinny_rows<3>(from, ldx, y, width, k, to, ldt);
                break;
            default:
                skinny_rows<4>(from, ldx, y, width, k, to, ldt);
        }
    }
}

}  // namespace
}  // namespace mezzo::cpu
