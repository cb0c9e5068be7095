// Products on tiles, one source for the instructions and for their model (see tile.h); the including file
// uses `tile_kernels`. Everything has internal linkage; vector.h says why.
//
// The sums of 32 rows by 32 columns of C are four tiles; each step loads two tiles of op(A) and two of op(B).
// 32 rows of op(A) stay in the L1 cache for a range of k, while all columns are loaded past it
// (tile_load_once). So C is written along its rows, the order that the processor's prefetcher follows. A
// product of tiles occupies its port for one cycle in 16; in the others, the sums of the block before are
// finished and stored.
#pragma once

#include "cpu/amx/tile.h"
#include "cpu/amx/tile_pack.h"
#include "cpu/isa/vector_math.h"

namespace mezzo::cpu {
namespace {

constexpr std::int64_t side = panel_lines;  // of a block of sums

// The pairs of planes of op(A) and op(B) that are multiplied, in an order that loads each tile of op(A) once
// and few of op(B) again.
struct OnePlane {
    static constexpr int planes_a = 1, planes_b = 1, count = 1, pairs[][2] = {{0, 0}};
};
struct OneByTwo {
    static constexpr int planes_a = 1, planes_b = 2, count = 2, pairs[][2] = {{0, 1}, {0, 0}};
};
struct TwoByOne {
    static constexpr int planes_a = 2, planes_b = 1, count = 2, pairs[][2] = {{1, 0}, {0, 0}};
};
struct AllOfTwo {
    static constexpr int planes_a = 2, planes_b = 2, count = 4, pairs[][2] = {{0, 0}, {0, 1}, {1, 1}, {1, 0}};
};
struct ThreeOfTwo {
    static constexpr int planes_a = 2, planes_b = 2, count = 3, pairs[][2] = {{0, 1}, {0, 0}, {1, 0}};
};
struct SixOfThree {
    static constexpr int planes_a = 3, planes_b = 3, count = 6,
                         pairs[][2] = {{0, 2}, {0, 0}, {0, 1}, {1, 1}, {1, 0}, {2, 0}};
};

MEZZO_INLINE std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

// ---- from sums to C

// A block of sums whose rows are still to be finished.
struct Finishing {
    using Rows = void (*)(Finishing&, std::int64_t rows);
    const Gemm& g;
    const float* bias;
    const Rows some_rows;
    const float* t = nullptr;  // rows of 32
    std::int64_t row = 0, rows = 0, columns = 0;
    std::int64_t at = 0, j = 0;  // its first element of C, and the column of that
};

MEZZO_INLINE void finish_some(Finishing& f, std::int64_t rows) {
    if (f.row < f.rows) f.some_rows(f, rows);
}

// Finishes the remaining rows of the block, and continues with the block at element `at` of C, column j,
// whose sums are t.
MEZZO_INLINE void finish_next(Finishing& f, const float* t, std::int64_t rows, std::int64_t columns,
                              std::int64_t at, std::int64_t j) {
    finish_some(f, side);
    f.t = t, f.row = 0, f.rows = rows, f.columns = columns, f.at = at, f.j = j;
}

template <Activation activation> MEZZO_INLINE FloatN<16> activate(FloatN<16> v) {
    if constexpr (activation == Activation::relu) return relu<16>(v);
    if constexpr (activation == Activation::gelu) return gelu<16>(v);
    if constexpr (activation == Activation::gelu_tanh) return gelu_tanh<16>(v);
    return v;
}

template <class T> MEZZO_INLINE void store_row(T* p, FloatN<16> v, FloatN<16> w) {
    store<16>(p, v);
    store<16>(p + 16, w);
}
#if defined(__AVX512BF16__)
template <> MEZZO_INLINE void store_row(bfloat16_t* p, FloatN<16> v, FloatN<16> w) {
    store_bytes(p, _mm512_cvtne2ps_pbh((__m512)w, (__m512)v));
}
#endif

// Finishes whole rows of a block if alpha is 1 and beta 0 or 1, in few instructions: with a bias (`biased`),
// added to C or Gemm::added (`added`), and with the value before the activation stored, too (`saved`).
template <Activation activation, class T, bool biased, bool added, bool saved = false>
MEZZO_INLINE void finish_whole(Finishing& f, std::int64_t rows) {
    const float* t = f.t + f.row * side;
    const std::int64_t at = f.at + f.row * f.g.ldc;
    T *c = static_cast<T*>(f.g.c) + at, *pre = saved ? static_cast<T*>(f.g.pre_activation) + at : nullptr;
    f.row += rows;
    [[maybe_unused]] const T* from =
        added ? static_cast<const T*>(f.g.added ? f.g.added : f.g.c) + at : nullptr;
    FloatN<16> bias = {}, more = {};
    if constexpr (biased) bias = load<16>(f.bias + f.j), more = load<16>(f.bias + f.j + 16);
    for (; rows > 0; --rows, t += side, c += f.g.ldc) {
        FloatN<16> v = load<16>(t), w = load<16>(t + 16);
        if constexpr (biased) v += bias, w += more;
        if constexpr (added) v += load<16>(from), w += load<16>(from + 16), from += f.g.ldc;
        if constexpr (saved) store_row(pre, v, w), pre += f.g.ldc;
        store_row(c, activate<activation>(v), activate<activation>(w));
    }
}

// Finishes 16 columns of a row from column j of the block on, or as many as C has.
template <Activation activation, class T>
MEZZO_INLINE void finish_vector(const Finishing& f, std::int64_t row, std::int64_t j) {
    const Gemm& g = f.g;
    const std::int64_t left = f.columns - j, at = f.at + row * g.ldc + j;
    const bool full = left >= 16;
    T* c = static_cast<T*>(g.c) + at;
    FloatN<16> v = load<16>(f.t + row * side + j) * g.alpha;
    if (f.bias) v += full ? load<16>(f.bias + f.j + j) : load_first<16>(f.bias + f.j + j, left);
    if (g.beta != 0.0f) {
        const T* const added = g.added ? static_cast<const T*>(g.added) + at : c;
        v += g.beta * (full ? load<16>(added) : load_first<16>(added, left));
    }
    if (g.pre_activation) {
        T* pre = static_cast<T*>(g.pre_activation) + at;
        full ? store<16>(pre, v) : store_first<16>(pre, v, left);
    }
    v = activate<activation>(v);
    full ? store<16>(c, v) : store_first<16>(c, v, left);
}

template <Activation activation, class T> void finish_rows(Finishing& f, std::int64_t rows) {
    const Gemm& g = f.g;
    rows = smaller(rows, f.rows - f.row);
    if (f.columns == side && g.alpha == 1 && g.pre_activation) {
        if (activation != Activation::none && g.beta == 0 && f.bias)
            return finish_whole<activation, T, true, false, true>(f, rows);
    } else if (f.columns == side && g.alpha == 1) {
        if (g.beta == 0)
            return f.bias ? finish_whole<activation, T, true, false>(f, rows)
                          : finish_whole<activation, T, false, false>(f, rows);
        if (activation == Activation::none && g.beta == 1 && !f.bias)
            return finish_whole<Activation::none, T, false, true>(f, rows);
        if (activation == Activation::relu && g.beta == 1 && f.bias)
            return finish_whole<Activation::relu, T, true, true>(f, rows);
    }
    for (; rows > 0; --rows, ++f.row)
        for (std::int64_t j = 0; j < f.columns; j += 16) finish_vector<activation, T>(f, f.row, j);
}

template <Activation activation> Finishing::Rows finish_for(Dtype type) {
    if (type == Dtype::bfloat16) return finish_rows<activation, bfloat16_t>;
    return type == Dtype::float16 ? finish_rows<activation, float16_t> : finish_rows<activation, float>;
}
MEZZO_INLINE Finishing::Rows finish_for(const Gemm& g) {
    switch (g.activation) {
        case Activation::relu:
            return finish_for<Activation::relu>(g.c_type);
        case Activation::gelu:
            return finish_for<Activation::gelu>(g.c_type);
        case Activation::gelu_tanh:
            return finish_for<Activation::gelu_tanh>(g.c_type);
        default:
            return finish_for<Activation::none>(g.c_type);
    }
}

// ---- the block of sums in registers

// 32 rows of op(A), packed or not.
struct Rows {
    const char* first;                      // row
    const char* second;                     // row 16
    std::int64_t stride;                    // from row to row
    std::int64_t step;                      // from 32 steps of k to the next
    const std::int64_t* offsets = nullptr;  // of each 32 steps, where they are not `step` apart
    std::int64_t split = 16;                // the first row of the second tile of sums

    MEZZO_INLINE Rows at(std::int64_t p) const {
        const std::int64_t behind = offsets ? offsets[p] : p * step;
        return {first + behind, second + behind, stride, step};
    }
};

// Multiplies 32 steps of k: tiles 0 to 3 are R x C tiles of sums, 4 and 5 those of op(A), 6 and 7 those of
// op(B).
template <class P, int R, int C, int I = 0> MEZZO_INLINE void multiply_step(const Rows& a, const char* b) {
    constexpr int pa = P::pairs[I][0], pb = P::pairs[I][1], before = I > 0 ? I - 1 : 0;
    constexpr bool load_a = I == 0 || pa != P::pairs[before][0], load_b = I == 0 || pb != P::pairs[before][1];
    const char* const bt = b + pb * 2 * tile_bytes;
    if constexpr (load_a) tile_load<4>(a.first + pa * 2 * tile_bytes, a.stride);
    if constexpr (load_b) tile_load_once<6>(bt, 64);
    tile_multiply<0, 4, 6>();
    if constexpr (C == 2) {
        if constexpr (load_b) tile_load_once<7>(bt + tile_bytes, 64);
        tile_multiply<1, 4, 7>();
    }
    if constexpr (R == 2) {
        if constexpr (load_a) tile_load<5>(a.second + pa * 2 * tile_bytes, a.stride);
        tile_multiply<2, 5, 6>();
        if constexpr (C == 2) tile_multiply<3, 5, 7>();
    }
    if constexpr (I + 1 < P::count) multiply_step<P, R, C, I + 1>(a, b);
}

template <int T> MEZZO_INLINE void read_sums(const float* from) {
    from ? tile_load<T>(from, 4 * side) : tile_zero<T>();
}

// Adds the products of `count` tiles of k to the sums at `from` (null: zeros) and stores them at `to`; both
// are 32 x 32.
template <class P, int R, int C> void micro_kernel(std::int64_t count, const Rows& a, const char* b,
                                                   const float* from, float* to, Finishing& before) {
    read_sums<0>(from);
    if constexpr (C == 2) read_sums<1>(from ? from + 16 : from);
    if constexpr (R == 2) read_sums<2>(from ? from + 16 * side : from);
    if constexpr (R == 2 && C == 2) read_sums<3>(from ? from + 16 * side + 16 : from);
    for (std::int64_t p = 0; p < count; ++p, b += P::planes_b * 2 * tile_bytes) {
        multiply_step<P, R, C>(a.at(p), b);
        finish_some(before, 4);
    }
    tile_store<0>(to, 4 * side);
    if constexpr (C == 2) tile_store<1>(to + 16, 4 * side);
    if constexpr (R == 2) tile_store<2>(to + a.split * side, 4 * side);
    if constexpr (R == 2 && C == 2) tile_store<3>(to + a.split * side + 16, 4 * side);
}

using MicroKernel = void (*)(std::int64_t, const Rows&, const char*, const float*, float*, Finishing&);

template <class P> MEZZO_INLINE MicroKernel pick(std::int64_t rows, std::int64_t columns) {
    if (rows > 16) return columns > 16 ? micro_kernel<P, 2, 2> : micro_kernel<P, 2, 1>;
    return columns > 16 ? micro_kernel<P, 1, 2> : micro_kernel<P, 1, 1>;
}

// ---- a part of C

// 32 rows of a part of C, and the memory for their sums.
struct RowPass {
    std::int64_t i, rows;
    float* sums;         // of the first block of columns
    float (*out)[1024];  // two blocks for the sums of the last range, used in turn
};

// Tiles of k [first, first + count) of 32 rows of op(A): unpacked, or packed into t.a_scratch.
MEZZO_INLINE Rows rows_of_a(const TileBlock& t, const RowPass& r, std::int64_t first, std::int64_t count) {
    const Gemm& g = t.g;
    const std::int64_t k = first * tile_steps;
    const auto* from = static_cast<const bfloat16_t*>(g.a) + r.i * g.lda + k;
    if (t.in_place && k + count * tile_steps <= g.k && r.rows == side) {
        const char* const row = reinterpret_cast<const char*>(from);
        return {row, row + 32 * g.lda, 2 * g.lda, 64};
    }
    pack<true, 1, bfloat16_t>({{from, Dtype::bfloat16, g.lda, true},
                               r.rows,
                               smaller(g.k - k, count * tile_steps),
                               0,
                               count,
                               t.a_scratch,
                               count * 2 * tile_bytes});
    return {t.a_scratch, t.a_scratch + tile_bytes, 64, 2 * tile_bytes};
}

// Whether the sums are C itself, in memory of the layout of a block of sums, such as attention's.
MEZZO_INLINE bool is_block_of_sums(const Gemm& g, const float* bias) {
    return g.c_type == Dtype::float32 && g.ldc == side && g.alpha == 1 && g.beta == 0 && !bias &&
           !g.pre_activation && g.activation == Activation::none;
}

template <class P> MEZZO_INLINE void multiply_rows(const TileBlock& t, const RowPass& r, Finishing& before) {
    constexpr std::int64_t a_step = P::planes_a * 2 * tile_bytes, b_step = P::planes_b * 2 * tile_bytes;
    const std::int64_t all = (t.g.k + tile_steps - 1) / tile_steps;
    for (std::int64_t s = 0; s < t.count; s += t.a_range) {
        const std::int64_t count = smaller(t.a_range, t.count - s), first = t.first + s;
        const char* const packed = t.a ? t.a + r.i / side * t.a_panel + first * a_step : nullptr;
        const Rows a = packed ? Rows{packed, packed + tile_bytes, 64, a_step} : rows_of_a(t, r, first, count);
        const bool last = first + count == all;
        for (std::int64_t j = 0; j < t.columns; j += side) {
            const std::int64_t columns = smaller(side, t.columns - j);
            float* const sums = r.sums + j * side;
            const bool direct = last && r.rows == side && columns == side && is_block_of_sums(t.g, t.bias);
            float* const to = direct ? static_cast<float*>(t.g.c) + r.i * side
                              : last ? r.out[before.t == r.out[0]]
                                     : sums;
            pick<P>(r.rows, columns)(count, a, t.b + j / side * t.b_panel + s * b_step,
                                     first == 0 ? nullptr : sums, to, before);
            if (last && !direct) finish_next(before, to, r.rows, columns, r.i * t.g.ldc + t.j + j, t.j + j);
        }
    }
}

template <class P> void multiply(const TileBlock& t) {
    alignas(64) float out[2][1024];
    Finishing before{t.g, t.bias, finish_for(t.g)};
    const std::int64_t across = (t.columns + side - 1) / side * side;
    const TileScope scope;
    for (std::int64_t i = t.i; i < t.i_end; i += side) {
        const RowPass r{i, smaller(side, t.i_end - i), t.sums + (t.all_rows ? (i - t.i) * across : 0), out};
        multiply_rows<P>(t, r, before);
    }
    finish_some(before, side);
}

template <class P> void multiply_windows(const TileWindows& t) {
    alignas(64) float out[2][1024];
    Finishing before{t.g, t.bias, finish_for(t.g)};
    const TileScope scope;
    for (const TileRun* run = t.runs; run != t.runs + t.runs_count; ++run) {
        const Rows a{run->first, run->second, t.stride, 0, t.offsets, run->split};
        for (std::int64_t j = 0; j < t.g.n; j += side) {
            const std::int64_t columns = smaller(side, t.g.n - j);
            float* const to = out[before.t == out[0]];
            pick<P>(run->rows > run->split ? side : 1, columns)(
                t.count, a, t.b + j / side * t.count * P::planes_b * 2 * tile_bytes, nullptr, to, before);
            finish_next(before, to, run->rows, columns, run->c + j, j);
        }
    }
    finish_some(before, side);
}

// ---- weight gradients of pairs of images

// R x C tiles of sums at row r, for the pixels of some tiles.
template <int R, int C> void add_pairs(const TileGradient& t, std::int64_t r, const TileColumns* columns,
                                       std::int64_t first, std::int64_t end) {
    const std::int64_t line = 4 * t.ld, o0 = columns[0].offset, o1 = columns[C - 1].offset;
    float *const s0 = t.sums + r * t.ld + columns[0].at, *const s1 = t.sums + r * t.ld + columns[C - 1].at;
    const bool add = t.accumulate || first > 0;
    add ? tile_load<0>(s0, line) : tile_zero<0>();
    if constexpr (C == 2) add ? tile_load<1>(s1, line) : tile_zero<1>();
    if constexpr (R == 2) add ? tile_load<2>(s0 + 16 * t.ld, line) : tile_zero<2>();
    if constexpr (R == 2 && C == 2) add ? tile_load<3>(s1 + 16 * t.ld, line) : tile_zero<3>();
    const char *const a = t.a + r / 16 * t.count * tile_bytes, *const more = a + t.count * tile_bytes;
    for (std::int64_t p = first; p < end; ++p) {
        tile_load<4>(a + p * tile_bytes, 64);
        tile_load<6>(t.pixels[p] + o0, t.stride);
        tile_multiply<0, 4, 6>();
        if constexpr (C == 2) {
            tile_load<7>(t.pixels[p] + o1, t.stride);
            tile_multiply<1, 4, 7>();
        }
        if constexpr (R == 2) {
            tile_load<5>(more + p * tile_bytes, 64);
            tile_multiply<2, 5, 6>();
            if constexpr (C == 2) tile_multiply<3, 5, 7>();
        }
    }
    tile_store<0>(s0, line);
    if constexpr (C == 2) tile_store<1>(s1, line);
    if constexpr (R == 2) tile_store<2>(s0 + 16 * t.ld, line);
    if constexpr (R == 2 && C == 2) tile_store<3>(s1 + 16 * t.ld, line);
}

// Adds few pixels at a time, so that the elements that other columns read again are still in the L1 cache.
template <int = 0> void add_gradient(const TileGradient& t) {
    constexpr std::int64_t some = 8;
    const TileScope scope;
    for (std::int64_t first = 0; first < t.count; first += some) {
        const std::int64_t end = smaller(t.count, first + some);
        for (std::int64_t r = 0; r < t.rows; r += 32)
            for (std::int64_t j = 0; j < t.columns_count; j += 2) {
                const bool wide = j + 1 < t.columns_count, tall = r + 16 < t.rows;
                const auto add = tall ? (wide ? add_pairs<2, 2> : add_pairs<2, 1>)
                                      : (wide ? add_pairs<1, 2> : add_pairs<1, 1>);
                add(t, r, t.columns + j, first, end);
            }
    }
}

MEZZO_INLINE void store_pairs(const char* first, const char* second, char* to) {
    HalfN<16> even, odd = {};
    __builtin_memcpy(&even, first, sizeof even);
    if (second) __builtin_memcpy(&odd, second, sizeof odd);
    store_bytes(to, widen<16>(even) | widen<16>(odd) << 16);
}

template <int = 0> void pair(const char* first, const char* second, std::int64_t n, char* to) {
    for (std::int64_t i = 0; i < n; i += 16)
        store_pairs(first + 2 * i, second ? second + 2 * i : second, to + 4 * i);
}

template <int = 0>
void pair_lines(const char* first, const char* second, std::int64_t stride, std::int64_t pixels, char* to) {
    alignas(64) char staged[16 * 64];
    for (std::int64_t i = 0; i < pixels; ++i, first += stride) {
        store_pairs(first, second, staged + 64 * i);
        if (second) second += stride;
    }
    __builtin_memset(staged + 64 * pixels, 0, static_cast<std::size_t>(64 * (16 - pixels)));
    b_from_lines(staged, 64, to);
}

template <int = 0>
void copy_pieces(const char* from, std::int64_t step, std::int64_t used, std::int64_t n, char* to) {
    for (; n > 0; --n, from += step)
        for (std::int64_t c = 0; c < used; c += tile_steps, to += 64) {
            const std::int64_t left = smaller(used - c, tile_steps);
#if defined(__AVX512BW__)
            const auto mask = static_cast<__mmask32>((std::uint64_t(1) << left) - 1);
            store_bytes(to, _mm512_maskz_loadu_epi16(mask, from + 2 * c));
#else
            __builtin_memset(to, 0, 64);
            __builtin_memcpy(to, from + 2 * c, static_cast<std::size_t>(2 * left));
#endif
        }
}

template <class P, class A, class B = A> constexpr TileProduct product() {
    TileProduct p{P::planes_a, P::planes_b, pack<true, P::planes_a, A>, pack<false, P::planes_b, B>,
                  multiply<P>};
    if constexpr (P::count == 1) {
        p.multiply_windows = multiply_windows<P>, p.add_gradient = add_gradient<>;
        p.pair = pair<>, p.pair_lines = pair_lines<>, p.copy_pieces = copy_pieces<>;
    }
    return p;
}

constexpr TileKernels tile_kernels = {
    .bf16 = product<OnePlane, bfloat16_t>(),
    .f16 = product<AllOfTwo, float16_t>(),
    .f32_six = product<SixOfThree, float>(),
    .f32_three = product<ThreeOfTwo, float>(),
    .bf16_f32 = product<OneByTwo, bfloat16_t, float>(),
    .f32_bf16 = product<TwoByOne, float, bfloat16_t>(),
    .f16_f32 = product<AllOfTwo, float16_t, float>(),
    .f32_f16 = product<AllOfTwo, float, float16_t>(),
};

}  // namespace
}  // namespace mezzo::cpu
