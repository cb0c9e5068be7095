// Building blocks of the Tensor Core attention kernels (FlashAttention-2: Dao, arXiv 2307.08691). A block of
// four warps works on 64 or 128 rows of one side (queries or keys), 16 or 32 per warp. It iterates over the
// other side in tiles that are copied into shared memory one step ahead (cp.async, flash_stages). All
// products are m16n8k16 with float32 accumulators.
//
// A Tensor Core multiplies weights of 0, too, and 0 times an inf or NaN is NaN. So a key or value that is
// hidden from some queries may spoil their rows, and a query or its gradient the rows of keys that are hidden
// from it. Kernels search for results that are not finite after the last tile, which costs one multiply-add
// per result. The forward computes these rows again over visible pairs only (redo_rows), as a kernel of its
// own does for the gradients of keys; the gradient of queries iterates over the keys once more.
//
// A warp's accumulators are Scores<tiles, columns>: `tiles` times 16 rows. In the layout of mma.cuh, element
// [i][j][e] of lane l is row 16 i + l / 4 + e / 2 * 8, column 8 j + l % 4 * 2 + e % 2.
#pragma once

#include "cuda/attention/attention.cuh"
#include "cuda/elementwise/approximate.cuh"
#include "cuda/mma.cuh"

namespace mezzo::cuda {

inline constexpr int flash_warps = 4;
// Tiles of the other side in shared memory. Compute capability 7.5 has 64 KiB for a block, and copies that do
// not overlap with products: one tile will do.
inline constexpr int flash_stages = MEZZO_AMPERE ? 2 : 1;
inline std::size_t flash_stages_on_device() { return launches_ampere_kernels() ? 2 : 1; }
inline constexpr unsigned flash_threads = 32 * flash_warps;

template <int tiles, int columns> using Scores = float[tiles][columns / 8][4];

// The distance of rows in shared memory, in elements. The 16 bytes of padding after each row put the eight
// rows that an ldmatrix reads into different banks.
template <int dim> inline constexpr int pitch = dim + 8;

__device__ inline int flash_lane() { return static_cast<int>(threadIdx.x % 32); }
// This lane's first row and column within a 16 x 8 tile of accumulators.
__device__ inline int lane_row() { return flash_lane() / 4; }
__device__ inline int lane_column() { return flash_lane() % 4 * 2; }

// The rows that a block works on: `rows` from `first` of head h in batch b. Consecutive blocks work on the
// same head, so that they find the head's other side in the L2 cache.
struct FlashPlace {
    std::int64_t bh, b, h;
    int first;

    // last_first: the last rows come first, because they have most to do under a causal mask.
    __device__ FlashPlace(const Attention& a, std::int64_t index, std::int64_t length, int rows,
                          bool last_first) {
        const std::int64_t row_tiles = (length + rows - 1) / rows, n = index % row_tiles;
        first = static_cast<int>(last_first ? row_tiles - 1 - n : n) * rows;
        bh = index / row_tiles;
        b = bh / a.heads;
        h = bh % a.heads;
    }
    static __host__ __device__ std::int64_t count(const Attention& a, std::int64_t length, int rows) {
        return a.batch * a.heads * ((length + rows - 1) / rows);
    }
};

// The rows of an operand that belong to one head.
template <class T> struct FlashOperand {
    const T* p;
    std::int64_t stride;
    int count;

    __device__ FlashOperand(const HeadRows& x, std::int64_t b, std::int64_t h, std::int64_t length)
        : p(static_cast<const T*>(x.p) + x.offset(b, h)), stride(x.length), count(static_cast<int>(length)) {}

    // Starts to copy rows first to first + rows - 1 to shared memory; rows past the last become zeros.
    template <int dim, int rows> __device__ void fetch(T* to, int first) const {
        fetch<dim, rows>(to, first, [](int) { return false; });
    }
    // The same for keys or values: rows that the mask hides from all queries become zeros, too.
    template <int dim, int rows>
    __device__ void fetch(T* to, int first, const Attention& a, const FlashPlace& at) const {
        fetch<dim, rows>(to, first, [&](int row) { return a.hidden_from_all(at.b, at.h, row); });
    }

private:
    template <int dim, int rows, class Hides>
    __device__ void fetch(T* to, int first, const Hides& hides) const {
        constexpr int pieces = dim / 8;  // of 16 bytes
        for (int n = static_cast<int>(threadIdx.x); n < rows * pieces; n += flash_threads) {
            const int row = n / pieces, column = n % pieces * 8;
            const bool there = first + row < count && !hides(first + row);
            copy_async(to + row * pitch<dim> + column, p + (there ? first + row : 0) * stride + column,
                       there ? 16 : 0);
        }
    }
};

// d = a b^T: rows of `a` [16 tiles][pitch] and of b [8 groups][pitch], both in shared memory.
template <class T, int dim, int tiles, int groups>
__device__ void multiply_rows(float (&d)[tiles][groups][4], const T* a, const T* b) {
    const int lane = flash_lane();
    const T* const a_row = a + lane % 16 * pitch<dim> + lane / 16 * 8;
    const T* const b_row = b + (lane % 8 + lane / 16 * 8) * pitch<dim> + lane / 8 % 2 * 8;
    MEZZO_UNROLL
    for (int i = 0; i < tiles; ++i) {
        MEZZO_UNROLL
        for (int j = 0; j < groups; ++j) d[i][j][0] = d[i][j][1] = d[i][j][2] = d[i][j][3] = 0;
    }
    MEZZO_UNROLL
    for (int k = 0; k < dim; k += 16) {
        Frag4 rows[tiles];
        MEZZO_UNROLL
        for (int i = 0; i < tiles; ++i) rows[i] = load_matrices(a_row + i * 16 * pitch<dim> + k);
        MEZZO_UNROLL
        for (int j = 0; j < groups; j += 2) {
            const Frag4 other = load_matrices(b_row + j * 8 * pitch<dim> + k);
            MEZZO_UNROLL
            for (int i = 0; i < tiles; ++i) {
                multiply_add(T(), d[i][j], rows[i], {{other.v[0], other.v[1]}});
                multiply_add(T(), d[i][j + 1], rows[i], {{other.v[2], other.v[3]}});
            }
        }
    }
}

// d += w b, with w rounded to T and b [8 groups][pitch] in shared memory.
template <class T, int dim, int tiles, int groups>
__device__ void add_product(float (&d)[tiles][dim / 8][4], const float (&w)[tiles][groups][4], const T* b) {
    const int lane = flash_lane();
    const T* const b_row = b + lane % 16 * pitch<dim> + lane / 16 * 8;
    MEZZO_UNROLL
    for (int k = 0; k < groups; k += 2) {
        Frag4 rows[tiles];
        MEZZO_UNROLL
        for (int i = 0; i < tiles; ++i) rows[i] = pack_operand<T>(w[i][k], w[i][k + 1]);
        MEZZO_UNROLL
        for (int j = 0; j < dim / 8; j += 2) {
            const Frag4 other = load_matrices_transposed(b_row + k * 8 * pitch<dim> + j * 8);
            MEZZO_UNROLL
            for (int i = 0; i < tiles; ++i) {
                multiply_add(T(), d[i][j], rows[i], {{other.v[0], other.v[1]}});
                multiply_add(T(), d[i][j + 1], rows[i], {{other.v[2], other.v[3]}});
            }
        }
    }
}

// Stores a warp's rows, which begin with row `first`, times factor[i][half] to out [batch, length, heads,
// dim].
template <class T, int dim, int tiles>
__device__ void store_rows(const HeadRows& out, const FlashPlace& at, int first, std::int64_t length,
                           const float (&d)[tiles][dim / 8][4], const float (&factor)[tiles][2]) {
    MEZZO_UNROLL
    for (int i = 0; i < tiles; ++i) {
        MEZZO_UNROLL
        for (int half = 0; half < 2; ++half) {
            const int row = first + i * 16 + half * 8 + lane_row();
            if (row >= length) continue;
            T* const to = static_cast<T*>(out.p) + out.offset(at.b, at.h) + row * out.length + lane_column();
            MEZZO_UNROLL
            for (int j = 0; j < dim / 8; ++j) {
                const float low = d[i][j][2 * half], high = d[i][j][2 * half + 1];
                *reinterpret_cast<Vec<T, 2>*>(to + j * 8) = {
                    {from_float<T>(low * factor[i][half]), from_float<T>(high * factor[i][half])}};
            }
        }
    }
}

// For the 8 rows of each [i][half]: the lanes that hold a result that is inf or NaN.
template <int tiles, int groups>
__device__ void find_nonfinite(const float (&d)[tiles][groups][4], unsigned (&lanes)[tiles][2]) {
    MEZZO_UNROLL
    for (int i = 0; i < tiles; ++i) {
        MEZZO_UNROLL
        for (int half = 0; half < 2; ++half) {
            float probe = 0;  // stays 0, or becomes NaN
            MEZZO_UNROLL
            for (int j = 0; j < groups; ++j) probe += d[i][j][2 * half] * 0.0f + d[i][j][2 * half + 1] * 0.0f;
            lanes[i][half] |= __ballot_sync(0xffffffffu, probe != 0.0f);
        }
    }
}
// Calls redo(i, half, n, row), with row = first + 16 i + 8 half + n, for the rows that find_nonfinite()
// found, with the whole warp. `first` is the warp's first row.
template <int tiles, class Redo> __device__ void redo_rows(const unsigned (&lanes)[tiles][2], int first,
                                                           std::int64_t length, const Redo& redo) {
    __syncwarp();  // the rows that redo() overwrites have been stored
    MEZZO_UNROLL
    for (int i = 0; i < tiles; ++i) {
        MEZZO_UNROLL
        for (int half = 0; half < 2; ++half) {
            for (int n = 0; n < 8 && lanes[i][half] != 0; ++n) {
                const int row = first + i * 16 + half * 8 + n;
                if (row < length && (lanes[i][half] >> 4 * n & 15u) != 0) redo(i, half, n, row);
            }
        }
    }
}

// A row of an operand or of a result, spread over the lanes of a warp.
template <class T, int dim> struct LaneRow {
    float x[dim / 32] = {};

    __device__ LaneRow() {}
    __device__ LaneRow(const FlashOperand<T>& from, int row) {
        MEZZO_UNROLL
        for (int n = 0; n < dim / 32; ++n) x[n] = to_float(from.p[row * from.stride + n * 32 + flash_lane()]);
    }
    // Whether all elements of the row are finite.
    __device__ bool finite() const {
        float probe = 0;  // stays 0, or becomes NaN
        MEZZO_UNROLL
        for (int n = 0; n < dim / 32; ++n) probe += x[n] * 0.0f;
        return __ballot_sync(0xffffffffu, probe != 0.0f) == 0;
    }
    __device__ float dot(const LaneRow& other) const {
        float sum = 0;
        MEZZO_UNROLL
        for (int n = 0; n < dim / 32; ++n) sum += x[n] * other.x[n];
        return warp_reduce(sum, Sum());
    }
    // Adds a row times a weight, which is rounded to T as add_product() does. A weight of 0 adds nothing.
    __device__ void add(float weight, const FlashOperand<T>& from, int row) {
        const float rounded = to_float(from_float<T>(weight));
        if (rounded == 0) return;
        const LaneRow other(from, row);
        MEZZO_UNROLL
        for (int n = 0; n < dim / 32; ++n) x[n] += rounded * other.x[n];
    }
    __device__ void store(const HeadRows& out, const FlashPlace& at, int row, float factor) const {
        T* const to = static_cast<T*>(out.p) + out.offset(at.b, at.h) + row * out.length + flash_lane();
        MEZZO_UNROLL
        for (int n = 0; n < dim / 32; ++n) to[n * 32] = from_float<T>(x[n] * factor);
    }
};

// Dropout mask of the 32 weights from `element` on: bit n is set if weight n of them is not dropped. The four
// lanes that hold a row of accumulators must call it together; each computes one Philox block.
__device__ inline std::uint32_t kept_in_row(const AttentionDropout& dropout, std::uint64_t element) {
    const unsigned part = threadIdx.x % 4 * 8;
    std::uint32_t bits = dropout.kept8(element + part) << part;
    bits |= __shfl_xor_sync(0xffffffffu, bits, 1);
    return bits | __shfl_xor_sync(0xffffffffu, bits, 2);
}

// The dropout mask where rows are keys and columns are queries, and the weights of adjacent queries are `row`
// apart: for two adjacent 16 x 8 tiles, whose first weight is `element`. Bit 8 e + lane_row() of word n
// belongs to element e of tile n.
__device__ inline Frag2 kept_in_columns(const AttentionDropout& dropout, std::uint64_t element,
                                        std::uint64_t row) {
    const unsigned own = threadIdx.x % 32 / 4, tile = own / 4, e = own % 4;
    const unsigned query = tile * 8 + threadIdx.x % 4 * 2 + e % 2;
    std::uint32_t bits = dropout.kept8(element + query * row + e / 2 * 8) << e * 8;
    bits |= __shfl_xor_sync(0xffffffffu, bits, 4);
    bits |= __shfl_xor_sync(0xffffffffu, bits, 8);
    const std::uint32_t other = __shfl_xor_sync(0xffffffffu, bits, 16);
    return tile == 0 ? Frag2{{bits, other}} : Frag2{{other, bits}};
}

inline constexpr float log2_e = 1.44269504f, ln_2 = 0.693147181f;

}  // namespace mezzo::cuda
