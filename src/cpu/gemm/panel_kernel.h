// Products of few rows with packed panels of op(B) (packed_weight.h), each read once, in one stream.
#pragma once

#include "cpu/gemm/pack.h"

namespace mezzo::cpu {
namespace {

// Sums of a column, each of every fourth step: s[0] = x[0] y[0] + x[4] y[4] + ..., and so on. The column's
// sum is (s[0] + s[1]) + (s[2] + s[3]).
constexpr int chains = packed_steps;
// Vectors of columns, and rows, that are summed at a time. All sums stay in registers.
constexpr int panel_vectors = lanes == packed_columns ? 1 : 2, panel_rows = lanes == packed_columns ? 4 : 1;
constexpr std::int64_t longest_sum = 2048;  // steps that are added in float32
constexpr std::int64_t prefetched = 2048;   // bytes ahead; with 4096 and more a stream is slower
static_assert(packed_columns % (panel_vectors * lanes) == 0);

// Four steps of the columns from column j of a panel on, in float32.
template <class T> MEZZO_INLINE void panel_steps(const T* panel, int j, Vector (&y)[chains]) {
#pragma GCC unroll 4
    for (int s = 0; s < chains; ++s) y[s] = load<lanes>(panel + s * packed_columns + j);
}
// Columns hold pairs of steps; bfloat16 widens by shifting.
MEZZO_INLINE void panel_steps(const bfloat16_t* panel, int j, Vector (&y)[chains]) {
#pragma GCC unroll 2
    for (int s = 0; s < chains; s += 2) {
        UintN<lanes> pairs;
        __builtin_memcpy(&pairs, panel + s * packed_columns + 2 * j, sizeof pairs);
        y[s] = (Vector)(pairs << 16);
        y[s + 1] = (Vector)(pairs & 0xffff0000u);
    }
}

// t[R, packed_columns] = x[R, k] y[k, packed_columns], k a multiple of packed_steps.
template <int R, class T> MEZZO_INLINE void panel_sums_of(const float* x, std::int64_t ldx, const T* y,
                                                          std::int64_t k, float* t, std::int64_t ldt) {
    for (int j = 0; j < packed_columns; j += panel_vectors * lanes) {
        Vector sum[R][panel_vectors][chains] = {};
        for (std::int64_t p = 0; p < k; p += packed_steps) {
            const T* const from = y + p * packed_columns;
            constexpr int bytes = packed_steps * packed_columns * sizeof(T);
#pragma GCC unroll 4
            for (int line = 0; line < bytes; line += 64)
                __builtin_prefetch(reinterpret_cast<const char*>(from) + prefetched + line);
#pragma GCC unroll 2
            for (int v = 0; v < panel_vectors; ++v) {
                Vector steps[chains];
                panel_steps(from, j + v * lanes, steps);
#pragma GCC unroll 4
                for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
                    for (int s = 0; s < chains; ++s)
                        sum[r][v][s] += broadcast<lanes>(x[r * ldx + p + s]) * steps[s];
            }
        }
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
            for (int v = 0; v < panel_vectors; ++v) {
                const Vector(&s)[chains] = sum[r][v];
                store<lanes>(t + r * ldt + j + v * lanes, (s[0] + s[1]) + (s[2] + s[3]));
            }
    }
}

// A longer k is cut into pieces whose sums are added in double.
template <int R, class T>
void one_panel(const float* x, std::int64_t ldx, const T* y, std::int64_t k, float* t, std::int64_t ldt) {
    if (k <= longest_sum) return panel_sums_of<R>(x, ldx, y, k, t, ldt);
    double total[R][packed_columns] = {};
    float part[R * packed_columns];
    for (std::int64_t p = 0; p < k; p += longest_sum) {
        panel_sums_of<R>(x + p, ldx, y + p * packed_columns, smaller(longest_sum, k - p), part,
                         packed_columns);
        for (int r = 0; r < R; ++r)
            for (int j = 0; j < packed_columns; ++j) total[r][j] += double(part[r * packed_columns + j]);
    }
    for (int r = 0; r < R; ++r)
        for (int j = 0; j < packed_columns; ++j) t[r * ldt + j] = float(total[r][j]);
}

// Rows from the first on, R at a time and then fewer; the panel stays in the L2 cache.
template <int R, class T> MEZZO_INLINE void rows_of_panel(const float* x, std::int64_t ldx, std::int64_t rows,
                                                          const T* y, std::int64_t k, float* t,
                                                          std::int64_t ldt) {
    for (; rows >= R; rows -= R, x += R * ldx, t += R * ldt) one_panel<R>(x, ldx, y, k, t, ldt);
    if constexpr (R > 1) rows_of_panel<R / 2>(x, ldx, rows, y, k, t, ldt);
}

template <int = 0> void panels(const float* x, std::int64_t ldx, std::int64_t rows, const void* y, Dtype type,
                               std::int64_t k, std::int64_t count, float* t, std::int64_t ldt) {
    const std::int64_t steps = (k + packed_steps - 1) / packed_steps * packed_steps;
    with_type(type, y, [&](const auto* data) {
        for (std::int64_t i = 0; i < count; ++i)
            rows_of_panel<panel_rows>(x, ldx, rows, data + i * steps * packed_columns, steps,
                                      t + i * packed_columns, ldt);
    });
}

}  // namespace
}  // namespace mezzo::cpu
