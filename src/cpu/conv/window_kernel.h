// The kernels for windows, one source for all instruction sets; the including file uses `window_table`. It
// defines the macros that gemm/pack.h and gemm/micro_kernel.h require. With MEZZO_DEPTH 2 a slot is a pair of
// bfloat16: of two channels in products, of two images in gradients.
#pragma once

#include "cpu/conv/window_tables.h"
#include "cpu/gemm/micro_kernel.h"
#include "cpu/isa/vector_math.h"

namespace mezzo::cpu {
namespace {

// Calls f(v, from) for the vectors of R rows, which lie `pitch` bytes apart from `row` on.
template <int R, int C, class F>
MEZZO_INLINE void each_vector(Vector (&sum)[R][C], const char* row, std::int64_t pitch, const F& f) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r, row += pitch)
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) f(sum[r][c], reinterpret_cast<const float*>(row) + c * lanes);
}

// Stores the sums of R windows, from i on, to t or in their final form to the result.
template <int R, int C>
MEZZO_INLINE void store_windows(Vector (&sum)[R][C], const WindowTile& w, std::int64_t i) {
    if constexpr (depth == 2) return store_sums(sum, w.t + i * w.ldt, w.ldt, w.accumulate);
    const auto add = [](Vector & v, const float* from) __attribute__((always_inline)) {
        v += load<lanes>(from);
    };
    std::int64_t pitch = w.ldt * std::int64_t(sizeof(float));
    char* to = reinterpret_cast<char*>(w.t) + i * pitch;
    if (w.accumulate) each_vector(sum, to, pitch, add);
    if (w.finish) {
        pitch = w.ld_result, to = w.result + i * pitch;
        if (w.bias) each_vector(sum, reinterpret_cast<const char*>(w.bias), 0, add);
        if (w.added) each_vector(sum, w.added + i * pitch, pitch, add);
        if (w.relu)
            each_vector(
                sum, to, pitch,
                [](Vector & v, const float*) __attribute__((always_inline)) { v = relu<lanes>(v); });
    }
    each_vector(
        sum, to, pitch, [](Vector & v, const float* result) __attribute__((always_inline)) {
            store<lanes>(const_cast<float*>(result), v);
        });
}

// R windows, from i on, times C vectors of columns. The windows are read without im2col, one pointer each.
// Prefetches lines of the weight from `ahead` on, and returns where they end.
template <int R, int C> const char* window_tile(const WindowTile& w, std::int64_t i, const char* ahead) {
    for (const char* const of : {static_cast<const char*>(w.result), w.added})
        for (int r = 0; of != nullptr && r < R; ++r)
#pragma GCC unroll 4
            for (int c = 0; c < C; ++c)
                __builtin_prefetch(of + (i + r) * w.ld_result + c * lanes * int(sizeof(float)), 1);
    const float* const* lines = w.lines + i;
    const float* b = w.b;
    Vector sum[R][C] = {};
    for (std::int64_t tap = 0; tap < w.taps; ++tap, lines += w.ld_lines) {
        // The middle window first: it is rarely at the side of an image.
        bool inside = lines[R / 2] != w.zeros;
        for (int r = 0; r < R && !inside; ++r) inside = lines[r] != w.zeros;
        if (!inside) {
            b += w.steps * nr;
            continue;
        }
        const float* a[R];
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) a[r] = lines[r] + w.first;
        for (std::int64_t p = 0; p < w.steps;) {
            // The same steps of the windows that follow: one cache line of each.
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r) __builtin_prefetch(lines[r + R] + w.first + p);
            for (std::int64_t n = w.pace; n > 0; --n, ahead += 64) __builtin_prefetch(ahead, 0, 2);
            for (const std::int64_t end = smaller(w.steps, p + window_steps); p < end; ++p, b += nr)
                add_step(
                    sum, [&](int r) { return repeat(a[r] + p); },
                    [&](int c) { return load<lanes>(b + c * lanes); });
        }
    }
    store_windows(sum, w, i);
    return ahead;
}

// The windows from i on, R at a time, and the last ones in smaller and smaller groups: a kernel for each
// number of them would make the library larger and hardly anything faster.
template <int R, int C>
MEZZO_INLINE void window_rows(const WindowTile& w, std::int64_t i, const char* ahead) {
    for (; i + R <= w.rows; i += R) ahead = window_tile<R, C>(w, i, ahead);
    if constexpr (R > 1) window_rows<R / 2, C>(w, i, ahead);
}

// One panel of C vectors. More windows at a time where it has few columns, so that there are enough sums in
// flight.
template <int C = nr / lanes> MEZZO_INLINE void some_panel(const WindowTile& w, std::int64_t vectors) {
    if constexpr (C > 1) {
        if (vectors < C) return some_panel<C - 1>(w, vectors);
    }
    window_rows<C * 2 <= nr / lanes ? 2 * mr : mr, C>(w, 0, w.ahead);
}

template <int = 0> void multiply_windows(const WindowTile& w) {
    some_panel(w, (w.columns + lanes - 1) / lanes);
}

template <int = 0> void find(const char* first, std::int64_t stride, std::int64_t n, const char** to) {
    std::int64_t at = 0;
    for (std::int64_t i = 0; i < n; ++i, at += stride) to[i] = first + at;
}

// Calls f with p as a pointer to the terms of gradients: elements, or pairs as they are.
template <class F> MEZZO_INLINE void with_slots(Dtype type, const void* p, const F& f) {
    if constexpr (depth == 1)
        with_type(type, p, f);
    else
        f(static_cast<const float*>(p));
}

template <class T> MEZZO_INLINE void pack_lines_of(const char* const* lines, std::int64_t first,
                                                   std::int64_t width, std::int64_t k, float* dst) {
    constexpr std::int64_t ahead = 8;
    for (std::int64_t p = 0; p < k; ++p, dst += nr) {
        const T* from = reinterpret_cast<const T*>(lines[p]) + first;
        if (p + ahead < k)
            for (std::int64_t i = 0; i < width * std::int64_t(sizeof(T)); i += 64)
                __builtin_prefetch(lines[p + ahead] + first * std::int64_t(sizeof(T)) + i);
        std::int64_t i = 0;
        for (; i + lanes <= width; i += lanes) store<lanes>(dst + i, load<lanes>(from + i));
        if constexpr (lanes == 16) {
            if (i < width) store_first<lanes>(dst + i, load_first<lanes>(from + i, width - i), width - i);
        } else {
            for (; i < width; ++i) dst[i] = static_cast<float>(from[i]);
        }
    }
}

template <int = 0> void pack_line_columns(const char* const* lines, Dtype type, std::int64_t first,
                                          std::int64_t width, std::int64_t k, float* dst) {
    with_slots(type, nullptr, [&](const auto* none) {
        using T = std::remove_cv_t<std::remove_pointer_t<decltype(none)>>;
        pack_lines_of<T>(lines, first, width, k, dst);
    });
}

// pack<mr>() for an operand that is contiguous along its lines. Each step is one vector, whose last elements
// lie where the next step follows.
template <class T> MEZZO_INLINE void pack_steps_of(const T* data, std::int64_t ld, std::int64_t width,
                                                   std::int64_t k, float* dst) {
    constexpr int n = mr <= 4 ? 4 : 8;
    constexpr std::int64_t block = 32;  // steps, whose lines stay in the L1 cache
    for (std::int64_t begin = 0; begin < k; begin += block)
        for (std::int64_t i = 0; i < width; i += mr) {
            const T* from = data + begin * ld + i;
            float* to = dst + i * k + begin * mr;
            const std::int64_t steps = smaller(block, k - begin);
            // A vector that reaches into the next panel may do so only before that panel is packed.
            const std::int64_t whole = width - i < n ? 0 : begin + steps < k ? steps : steps - 1;
            std::int64_t p = 0;
            for (; p < whole; ++p, from += ld, to += mr) store<n>(to, load<n>(from));
            for (; p < steps; ++p, from += ld, to += mr)
                store_first<lanes>(to, load_first<lanes>(from, smaller(mr, width - i)), mr);
        }
}

template <int = 0> void pack_steps(const Operand& x, std::int64_t width, std::int64_t k, float* dst) {
    with_slots(x.type, x.data, [&](const auto* data) { pack_steps_of(data, x.ld, width, k, dst); });
}

// R rows of packed op(A) times C vectors of unpacked windows.
template <int R, int C> void tile_of_lines(const float* a, const float* const* const* lines,
                                           const std::int64_t* firsts, std::int64_t k, float* t,
                                           std::int64_t ldt, bool accumulate, Prefetch& ahead) {
    const float* const* from[C];
    std::int64_t first[C];
    for (int c = 0; c < C; ++c) from[c] = lines[c], first[c] = firsts[c];
    Vector sum[R][C] = {};
    for (std::int64_t p = 0; p < k;) {
        fetch(ahead);
        for (const std::int64_t end = smaller(k, p + Prefetch::slots); p < end; ++p, a += mr)
            add_step(
                sum, [&](int r) { return repeat(a + r); },
                [&](int c) { return load<lanes>(from[c][p] + first[c]); });
    }
    store_sums(sum, t, ldt, accumulate);
}

template <int R, int C> MEZZO_INLINE auto pick_lines(std::int64_t rows, std::int64_t vectors) {
    if constexpr (C > 1) {
        if (vectors < C) return pick_lines<R, C - 1>(rows, vectors);
    }
    if constexpr (R > 1) {
        if (rows < R) return pick_lines<R - 1, C>(rows, vectors);
    }
    return tile_of_lines<R, C>;
}

template <int = 0> void tile_in_place(const float* a, const float* const* const* lines,
                                      const std::int64_t* firsts, std::int64_t k, std::int64_t rows,
                                      std::int64_t columns, float* t, std::int64_t ldt, bool accumulate,
                                      Prefetch& ahead) {
    for (std::int64_t i = 0; i < rows; i += mr)
        pick_lines<mr, nr / lanes>(rows - i, columns / lanes)(a + i * k, lines, firsts, k, t + i * ldt, ldt,
                                                              accumulate, ahead);
}

#if MEZZO_DEPTH == 1

template <int = 0> void add_rows(const float* from, std::int64_t ld, float* to, std::int64_t step,
                                 std::int64_t n, std::int64_t width) {
    for (; n > 0; --n, from += ld, to += step) {
        std::int64_t j = 0;
        for (; j + lanes <= width; j += lanes)
            store<lanes>(to + j, load<lanes>(to + j) + load<lanes>(from + j));
        if constexpr (lanes == 16) {
            const std::int64_t left = width - j;
            if (left > 0)
                store_first<lanes>(to + j,
                                   load_first<lanes>(to + j, left) + load_first<lanes>(from + j, left), left);
        } else {
            for (; j < width; ++j) to[j] += from[j];
        }
    }
}

// ---- one channel per step

// Element k of the result is element lane[k] of x.
MEZZO_INLINE Vector permuted(const Vector& x, const IntN<lanes>& lane) {
#if defined(__AVX512F__)
    return (Vector)_mm512_maskz_permutexvar_ps(0xffff, (__m512i)lane, (__m512)x);
#elif defined(__AVX2__)
    return (Vector)_mm256_permutevar8x32_ps((__m256)x, (__m256i)lane);
#else
    Vector result;
    for (int k = 0; k < lanes; ++k) result[k] = x[lane[k]];
    return result;
#endif
}

// Pixels from i on, P at a time and then fewer. Channels are the inner loop: they lie in a row in memory.
// With `wide` groups, each step repeats one channel of a group after the other in the group's lanes.
template <int P, bool wide> MEZZO_INLINE void depthwise_pixels(const DepthwiseProduct& d, std::int64_t i) {
    const DepthwiseRow& row = d.row;
    const std::int64_t stride = row.stride;
    const DepthwiseStep* const end = row.list + row.steps;
    IntN<lanes> first;  // lane of each group's first channel
    for (int k = 0; k < lanes; ++k) first[k] = int(k / row.inputs * row.inputs);
    for (; i + P <= row.pixels; i += P)
        for (std::int64_t c = 0; c < row.channels; c += lanes) {
            const std::int64_t count = smaller(lanes, row.channels - c);
            const float *const from = row.from + i * stride + c, *const w = d.w + c;
            Vector sum[P];
#pragma GCC unroll 8
            for (int p = 0; p < P; ++p) sum[p] = load<lanes>(d.bias + c);
            for (const DepthwiseStep* step = row.list; step != end; ++step) {
                const float* const at = from + step->offset;
                if constexpr (wide) {
                    Vector x[P];
#pragma GCC unroll 8
                    for (int p = 0; p < P; ++p) x[p] = load<lanes>(at + p * stride);
                    IntN<lanes> lane = first;
                    const float* of_step = w + step->index * row.inputs * d.ld_w;
                    for (std::int64_t s = 0; s < row.inputs; ++s, of_step += d.ld_w, lane += 1) {
                        const Vector v = load<lanes>(of_step);
#pragma GCC unroll 8
                        for (int p = 0; p < P; ++p) sum[p] += permuted(x[p], lane) * v;
                    }
                } else {
                    const Vector v = load<lanes>(w + step->index * d.ld_w);
#pragma GCC unroll 8
                    for (int p = 0; p < P; ++p) sum[p] += load<lanes>(at + p * stride) * v;
                }
            }
            float* const to = d.to + i * d.ld + c;
            if (d.stream) {
#pragma GCC unroll 8
                for (int p = 0; p < P; ++p) stream<lanes>(to + p * d.ld, sum[p]);
            } else if (count == lanes) {
#pragma GCC unroll 8
                for (int p = 0; p < P; ++p) store<lanes>(to + p * d.ld, sum[p]);
            } else {
#pragma GCC unroll 8
                for (int p = 0; p < P; ++p) store_first<lanes>(to + p * d.ld, sum[p], count);
            }
        }
    if constexpr (P > 1) depthwise_pixels<P / 2, wide>(d, i);
}
// Most images are as wide as a multiple of 7 or of 8.
template <int = 0> void depthwise(const DepthwiseProduct& d) {
    if (lanes == 16 && d.row.inputs > 1)
        depthwise_pixels<8, true>(d, 0);
    else
        d.row.pixels % 7 == 0 ? depthwise_pixels<7, false>(d, 0) : depthwise_pixels<8, false>(d, 0);
    if (d.stream) fence();
}

// Steps from t on, T at a time and then fewer, of a vector of channels.
template <int T>
MEZZO_INLINE void depthwise_steps(const DepthwiseGradient& d, std::int64_t t, std::int64_t c) {
    const DepthwiseRow& row = d.row;
    const std::int64_t count = smaller(lanes, row.channels - c);
    for (; t + T <= row.steps; t += T) {
        Vector sum[T] = {};
        const float* from[T];
#pragma GCC unroll 9
        for (int u = 0; u < T; ++u) from[u] = row.from + row.list[t + u].offset + c;
        const float* g = d.gradient + c;
        for (std::int64_t i = 0, at = 0; i < row.pixels; ++i, at += row.stride, g += d.ld_gradient) {
            const Vector v = count == lanes ? load<lanes>(g) : load_first<lanes>(g, count);
#pragma GCC unroll 9
            for (int u = 0; u < T; ++u) sum[u] += load<lanes>(from[u] + at) * v;
        }
#pragma GCC unroll 9
        for (int u = 0; u < T; ++u) {
            float* const to = d.sums + row.list[t + u].index * d.ld_sums + c;
            store<lanes>(to, load<lanes>(to) + sum[u]);
        }
    }
    if constexpr (T > 1) depthwise_steps<T / 2>(d, t, c);
}
template <int = 0> void depthwise_gradient(const DepthwiseGradient& d) {
    for (std::int64_t c = 0; c < d.row.channels; c += lanes) depthwise_steps<9>(d, 0, c);
}

#else

template <int = 0> void pair(const bfloat16_t* first, const bfloat16_t* second, std::int64_t n, float* to) {
    for (std::int64_t i = 0; i < n; i += lanes) {
        const auto v = slots_across<lanes>(first + i, second ? second + i : second, n - i);
        n - i >= lanes ? store<lanes>(to + i, v) : store_first<lanes>(to + i, v, n - i);
    }
}

#endif

constexpr WindowKernels window_table = {
    .mr = mr,
    .nr = nr,
    .depth = depth,
    .lanes = lanes,
    .pack = pack<nr>,
    .multiply = multiply_windows<>,
    .find = find<>,
    .pack_a = pack_steps<>,
    .tile = tile<>,
    .pack_lines = pack_line_columns<>,
    .tile_in_place = tile_in_place<>,
#if MEZZO_DEPTH == 1
    .add_rows = add_rows<>,
    .depthwise = depthwise<>,
    .depthwise_gradient = depthwise_gradient<>,
#else
    .pair = pair<>,
#endif
};

}  // namespace
}  // namespace mezzo::cpu
