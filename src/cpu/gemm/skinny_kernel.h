// GEMM kernels for products with few rows, whose other operand is read once, unpacked, and for small
// matrices.
#pragma once

#include "cpu/gemm/pack.h"

namespace mezzo::cpu {
namespace {

// y is contiguous along the columns of the result: rows [begin, end) of it, four at a time, are added to R
// rows of t, which begin as 0.
template <int R, class T> void skinny_across(const float* x, std::int64_t ldx, const T* y, std::int64_t ldy,
                                             std::int64_t width, std::int64_t begin, std::int64_t k, float* t,
                                             std::int64_t ldt) {
    for (std::int64_t p = begin; p < k || p == 0; p += 4) {
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

// The sum of v's lower and upper half, down to four lanes.
template <int N> MEZZO_INLINE FloatN<4> fold(const FloatN<N>& v) {
    if constexpr (N == 4)
        return v;
    else if constexpr (N == 8)
        return __builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 4, 5, 6, 7);
    else
        return fold<N / 2>(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
                           __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15));
}

// to[j] = the sum of v[j], from j = `at` on. Without a loop, whose index would keep v in memory.
template <int J, int at = 0> MEZZO_INLINE void horizontal_sums(const Vector (&v)[J], float* to) {
    if constexpr (at + 4 <= J) {
        const FloatN<4> a = fold<lanes>(v[at]), b = fold<lanes>(v[at + 1]), c = fold<lanes>(v[at + 2]),
                        d = fold<lanes>(v[at + 3]);
        const FloatN<4> ab = __builtin_shufflevector(a, b, 0, 4, 1, 5) +
                             __builtin_shufflevector(a, b, 2, 6, 3, 7),
                        cd = __builtin_shufflevector(c, d, 0, 4, 1, 5) +
                             __builtin_shufflevector(c, d, 2, 6, 3, 7);
        store<4>(to + at,
                 __builtin_shufflevector(ab, cd, 0, 1, 4, 5) + __builtin_shufflevector(ab, cd, 2, 3, 6, 7));
        horizontal_sums<J, at + 4>(v, to);
    } else if constexpr (at < J) {
        const FloatN<4> a = fold<lanes>(v[at]);
        to[at] = (a[0] + a[2]) + (a[1] + a[3]);
        horizontal_sums<J, at + 1>(v, to);
    }
}

// Dot products of R rows of x with J lines of y, which is contiguous along k. x is zero behind k. There is
// one copy of each for all callers: the cost of a call is negligible next to its loop.
template <int R, int J, class T> [[gnu::noinline]] void dots(const float* x, std::int64_t ldx, const T* y,
                                                             std::int64_t ldy, std::int64_t k, float* t,
                                                             std::int64_t ldt) {
    Vector sum[R][J] = {};
    // Few addresses, from which those of eight lines follow: more would not stay in registers.
    const std::int64_t step = ldy * std::int64_t(sizeof(T)), three = 3 * step;
    const char* const first = reinterpret_cast<const char*>(y);
    const char* group[2] = {first, first + (J > 4 ? 4 * step : 0)};
    const auto line = [&](int j) __attribute__((always_inline)) {
        return group[j / 4 % 2] + (j % 4 == 3 ? three : j % 4 * step);
    };
    const std::int64_t next = J * step;
    for (std::int64_t p = 0; p < k; p += lanes) {
        Vector u[R];
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) u[r] = load<lanes>(x + r * ldx + p);
#pragma GCC unroll 8
        for (int j = 0; j < J; ++j) {
            const char* const at = line(j);
            const T* const from = reinterpret_cast<const T*>(at);
            // The lines of the next group, which are too short for the processor's own prefetching.
            if constexpr (R == 1 && J > 1) __builtin_prefetch(at + next);
            const Vector v = p + lanes <= k ? load<lanes>(from) : load_first<lanes>(from, k - p);
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) sum[r][j] += u[r] * v;
        }
        group[0] += lanes * sizeof(T), group[1] += lanes * sizeof(T);
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) horizontal_sums(sum[r], t + r * ldt);
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

// Steps [begin, end) of k if y is contiguous across them, else all, [0, end).
template <int R> MEZZO_INLINE void skinny_rows(const float* x, std::int64_t ldx, const Operand& y,
                                               std::int64_t width, std::int64_t begin, std::int64_t end,
                                               float* t, std::int64_t ldt) {
    with_type(y.type, y.data, [&](const auto* data) {
        if (y.along_k)
            skinny_along<R>(x, ldx, data, y.ld, width, end, t, ldt);
        else
            skinny_across<R>(x, ldx, data, y.ld, width, begin, end, t, ldt);
    });
}

template <int = 0> void skinny(const float* x, std::int64_t ldx, std::int64_t rows, const Operand& y,
                               std::int64_t width, std::int64_t k, float* t, std::int64_t ldt) {
    const std::int64_t whole = k > 0 ? k : 1;
    const std::int64_t block = y.along_k || rows <= 4 ? whole : 128;  // of y, which stays in the L2 cache
    for (std::int64_t p = 0; p < k || p == 0; p += block)
        for (std::int64_t i = 0; i < rows; i += 4) {
            const float* from = x + i * ldx;
            float* to = t + i * ldt;
            const std::int64_t end = smaller(k, p + block);
            switch (smaller(4, rows - i)) {
                case 1:
                    skinny_rows<1>(from, ldx, y, width, p, end, to, ldt);
                    break;
                case 2:
                    skinny_rows<2>(from, ldx, y, width, p, end, to, ldt);
                    break;
                case 3:
                    skinny_rows<3>(from, ldx, y, width, p, end, to, ldt);
                    break;
                default:
                    skinny_rows<4>(from, ldx, y, width, p, end, to, ldt);
            }
        }
}

// Rows of a small product from i on, R at a time and then fewer.
template <int R>
MEZZO_INLINE void small_rows(const Gemm& g, std::int64_t i, const float* b, std::int64_t ldb) {
    const std::int64_t row = g.trans_a ? 1 : g.lda, step = g.trans_a ? g.lda : 1;
    for (; i + R <= g.m; i += R) {
        const float* const a = static_cast<const float*>(g.a) + i * row;
        Vector sum[R] = {};
        for (std::int64_t p = 0; p < g.k; ++p) {
            const float* const from = b + p * ldb;
            const Vector v = g.n == lanes ? load<lanes>(from) : load_first<lanes>(from, g.n);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) sum[r] += broadcast<lanes>(a[r * row + p * step]) * v;
        }
        float* const c = static_cast<float*>(g.c) + i * g.ldc;
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r)
            g.n == lanes ? store<lanes>(c + r * g.ldc, sum[r])
                         : store_first<lanes>(c + r * g.ldc, sum[r], g.n);
    }
    if constexpr (R > 1) small_rows<R / 2>(g, i, b, ldb);
}
template <int = 0> void small_floats(const Gemm& g) {
    const float* const b = static_cast<const float*>(g.b);
    if (!g.trans_b) return small_rows<8>(g, 0, b, g.ldb);
    float rows[largest_small * lanes];
    for (std::int64_t p = 0; p < g.k; ++p)
        for (std::int64_t j = 0; j < g.n; ++j) rows[p * lanes + j] = b[j * g.ldb + p];
    small_rows<8>(g, 0, rows, lanes);
}

// Copies a matrix of at most largest_small rows and columns, as float32 or from it.
template <class From, class To> MEZZO_INLINE void copy_small(const From* from, std::int64_t ld_from,
                                                             std::int64_t rows, std::int64_t columns, To* to,
                                                             std::int64_t ld_to) {
    for (std::int64_t i = 0; i < rows; ++i, from += ld_from, to += ld_to)
        for (std::int64_t j = 0; j < columns; j += lanes) {
            const std::int64_t left = columns - j;
            const Vector v = left >= lanes ? load<lanes>(from + j) : load_first<lanes>(from + j, left);
            left >= lanes ? store<lanes>(to + j, v) : store_first<lanes>(to + j, v, left);
        }
}

template <int = 0> void small(const Gemm& g) {
    if (g.a_type == Dtype::float32) return small_floats(g);
    constexpr std::int64_t ld = largest_small;
    float a[ld * ld], b[ld * ld], c[ld * ld];
    Gemm wide = g;
    wide.a = a, wide.b = b, wide.c = c;
    wide.lda = wide.ldb = wide.ldc = ld;
    with_type(g.a_type, g.a, [&](const auto* from) {
        copy_small(from, g.lda, g.trans_a ? g.k : g.m, g.trans_a ? g.m : g.k, a, ld);
        const auto* const from_b = static_cast<decltype(from)>(g.b);
        copy_small(from_b, g.ldb, g.trans_b ? g.n : g.k, g.trans_b ? g.k : g.n, b, ld);
        small_floats(wide);
        copy_small(c, ld, g.m, g.n,
                   static_cast<std::remove_cv_t<std::remove_pointer_t<decltype(from)>>*>(g.c), g.ldc);
    });
}

}  // namespace
}  // namespace mezzo::cpu
