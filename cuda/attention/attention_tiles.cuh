// Tiles of attention in ordinary float32 or float64 arithmetic, for attention.cu and attention_grad.cu.
#pragma once

#include "cuda/attention/attention.cuh"

namespace mezzo::cuda::attention_tiles {

inline constexpr int tile = 32, warps = 4, warp_rows = tile / warps;
inline constexpr unsigned threads = 32 * warps;

// Parts of two operands, and the weights that threads exchange: 12.7 KB in float32, 25.3 KB in float64.
template <class C> struct Tiles { C a[tile][tile + 1], b[tile][tile + 1], w[tile][tile + 1]; };

// Copies `rows` rows of up to 32 elements, which begin `stride` elements apart at p[offset], to a tile; the
// rest of it becomes 0. Returns whether an element that this thread copied is NaN or infinite. One function
// for all callers: inlined into each, with a loop per dtype, it would be most of this file's code.
template <class C> __noinline__ __device__ bool stage_tile(C (&to)[tile][tile + 1], const void* p,
                                                           Dtype dtype, std::int64_t offset,
                                                           std::int64_t stride, std::int64_t rows,
                                                           std::int64_t columns) {
    const int c = static_cast<int>(threadIdx.x % 32);
    bool odd = false;
    for (int r = static_cast<int>(threadIdx.x / 32); r < tile; r += warps) {
        const bool there = r < rows && c < columns;
        to[r][c] = there ? load_as<C, Dtypes::floating>(p, dtype, offset + r * stride + c) : C(0);
        odd = odd || to[r][c] - to[r][c] != C(0);
    }
    return odd;
}

// Some rows of one head. Rows past `count` read as zeros.
template <class C> struct Operand {
    const HeadRows& x;
    std::int64_t offset, count, dim;

    __device__ Operand(const HeadRows& rows, std::int64_t b, std::int64_t h, std::int64_t length,
                       std::int64_t dims)
        : x(rows), offset(rows.offset(b, h)), count(length), dim(dims) {}

    // to[r][c] = element (first + r, column + c). Returns whether one that this thread copied is NaN or
    // infinite.
    __device__ bool stage(C (&to)[tile][tile + 1], std::int64_t first, std::int64_t column) const {
        return stage_tile(to, x.p, x.dtype, offset + first * x.length + column, x.length, count - first,
                          dim - column);
    }
};

// The first of this warp's rows in a tile.
__device__ inline int warp_row() { return static_cast<int>(threadIdx.x / 32) * warp_rows; }
__device__ inline int lane() { return static_cast<int>(threadIdx.x % 32); }

// s[r] = row a0 + warp_row() + r of a times row b0 + lane() of b.
template <class C> __device__ void dots(Tiles<C>& t, const Operand<C>& a, std::int64_t a0,
                                        const Operand<C>& b, std::int64_t b0, C (&s)[warp_rows]) {
    for (C& sum : s) sum = 0;
    for (std::int64_t column = 0; column < a.dim; column += tile) {
        __syncthreads();  // all threads have read the old contents of the tiles
        a.stage(t.a, a0, column);
        b.stage(t.b, b0, column);
        __syncthreads();
        for (int c = 0; c < tile; ++c) {
            const C other = t.b[lane()][c];
            for (int r = 0; r < warp_rows; ++r) s[r] += t.a[warp_row() + r][c] * other;
        }
    }
}

// sum[r][n] += the sum over all lanes l of (w[r] of lane l) times element (b0 + l, column + 32 n + lane()) of
// b. Elements whose w is 0 are not read, because they may be NaN or infinite.
template <class C, int parts> __device__ void accumulate(Tiles<C>& t, const C (&w)[warp_rows],
                                                         const Operand<C>& b, std::int64_t b0,
                                                         std::int64_t column, C (&sum)[warp_rows][parts]) {
    MEZZO_UNROLL
    for (int n = 0; n < parts; ++n) {
        if (column + n * tile >= b.dim) continue;
        __syncthreads();
        if (n == 0)
            for (int r = 0; r < warp_rows; ++r) t.w[warp_row() + r][lane()] = w[r];
        if (__syncthreads_or(b.stage(t.b, b0, column + n * tile)) != 0) {
            for (int l = 0; l < tile; ++l)
                for (int r = 0; r < warp_rows; ++r)
                    if (t.w[warp_row() + r][l] != C(0)) sum[r][n] += t.w[warp_row() + r][l] * t.b[l][lane()];
            continue;
        }
        for (int l = 0; l < tile; ++l) {
            const C other = t.b[l][lane()];
            MEZZO_UNROLL
            for (int r = 0; r < warp_rows; ++r) sum[r][n] += t.w[warp_row() + r][l] * other;
        }
    }
}

// The tile of results that a block computes: rows from `first` of head h in batch b, dimensions from
// `column`.
struct ResultTile {
    std::int64_t bh, b, h, first, column;

    __device__ ResultTile(const Attention& a, std::int64_t index, std::int64_t length, std::int64_t columns) {
        const std::int64_t row_tiles = (length + tile - 1) / tile, passes = (a.dim + columns - 1) / columns;
        first = index % row_tiles * tile;
        column = index / row_tiles % passes * columns;
        bh = index / (row_tiles * passes);
        b = bh / a.heads;
        h = bh % a.heads;
    }
    static __host__ __device__ std::int64_t count(const Attention& a, std::int64_t length,
                                                  std::int64_t columns) {
        return a.batch * a.heads * ((length + tile - 1) / tile) * ((a.dim + columns - 1) / columns);
    }
};

// Stores sum[r] * factor[r] to out [batch, length, heads, dim].
template <class C, int parts> __device__ void store_rows(const Attention& a, const ResultTile& place,
                                                         std::int64_t length,
                                                         const C (&sum)[warp_rows][parts],
                                                         const C (&factor)[warp_rows], const HeadRows& out) {
    const std::int64_t offset = out.offset(place.b, place.h);
    MEZZO_UNROLL
    for (int r = 0; r < warp_rows; ++r) {
        const std::int64_t row = place.first + warp_row() + r;
        MEZZO_UNROLL
        for (int n = 0; n < parts; ++n) {
            const std::int64_t column = place.column + n * tile + lane();
            if (row >= length || column >= a.dim) continue;
            store_as(out.p, out.dtype, offset + row * out.length + column, sum[r][n] * factor[r]);
        }
    }
}

// The end of the keys that any of the queries first to first + tile - 1 attends to.
__device__ inline std::int64_t keys_seen(const Attention& a, std::int64_t first) {
    return a.keys_end(first, tile);
}

// Calls run with the number of 32-column parts of a pass as a constant: 2 for dim up to 64, else 4.
template <class Run> void with_parts(const Attention& a, const Run& run) {
    if (a.dim <= 2 * tile)
        run(std::integral_constant<int, 2>());
    else
        run(std::integral_constant<int, 4>());
}

}  // namespace mezzo::cuda::attention_tiles
