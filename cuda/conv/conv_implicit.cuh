// Building blocks of convolutions on Tensor Cores. A block of four warps, two by two, computes a tile of the
// result in steps of 32 products per element. The tiles of both operands are copied into shared memory three
// steps ahead (cp.async, four stages; one step and two stages on compute capability 7.5, whose copies are
// complete at once and whose blocks have 64 KiB of shared memory); pixels outside of the image are copies of
// no bytes, which leave zeros. All products are m16n8k16 with float32 sums, added in the order of the steps.
#pragma once

#include "cuda/conv/conv.h"
#include "cuda/elementwise/elements.cuh"
#include "cuda/fast_divide.cuh"
#include "cuda/mma.cuh"

namespace mezzo::cuda {

inline constexpr unsigned conv_threads = 128;
inline constexpr int conv_depth = 32, conv_stages = MEZZO_AMPERE ? 4 : 2;
inline std::size_t conv_stages_on_device() { return launches_ampere_kernels() ? 4 : 2; }

__device__ inline int conv_lane() { return static_cast<int>(threadIdx.x % 32); }
__device__ inline int conv_warp_row() { return static_cast<int>(threadIdx.x / 64); }
__device__ inline int conv_warp_column() { return static_cast<int>(threadIdx.x / 32 % 2); }

// Layout of an operand in memory. along: adjacent elements are factors of one sum. across: adjacent elements
// belong to adjacent rows (columns) of the result.
enum class LineDirection { along, across };

// `size` rows (columns) of an operand in shared memory. 16 bytes of padding behind each line put the eight
// lines that an ldmatrix reads into different banks.
template <class T, int size, LineDirection lines> struct ConvOperand {
    static constexpr int line = lines == LineDirection::along ? conv_depth : size, pitch = line + 8;
    static constexpr int count = lines == LineDirection::along ? size : conv_depth, elements = count * pitch;
    // Pieces of 16 bytes, and the lines that all threads together copy at once.
    static constexpr int pieces = line / 8, at_once = static_cast<int>(conv_threads) / pieces,
                         passes = count / at_once;

    // The piece of a line, and the line, that the calling thread copies.
    static __device__ int column() { return static_cast<int>(threadIdx.x) % pieces * 8; }
    static __device__ int own_line(int pass) {
        return static_cast<int>(threadIdx.x) / pieces + pass * at_once;
    }
    static __device__ void copy(T* to, int pass, const T* from, bool there) {
        copy_async(to + own_line(pass) * pitch + column(), from, there ? 16 : 0);
    }
    // The 16 x 16 operand A of rows i to i + 15 and factors k to k + 15.
    static __device__ Frag4 rows(const T* tile, int i, int k) {
        const int lane = conv_lane();
        if constexpr (lines == LineDirection::along)
            return load_matrices(tile + (i + lane % 16) * pitch + k + lane / 16 * 8);
        else
            return load_matrices_transposed(tile + (k + lane % 8 + lane / 16 * 8) * pitch + i +
                                            lane / 8 % 2 * 8);
    }
    // Two operands B of columns j to j + 7 (the first two registers) and j + 8 to j + 15.
    static __device__ Frag4 columns(const T* tile, int j, int k) {
        const int lane = conv_lane();
        if constexpr (lines == LineDirection::along)
            return load_matrices(tile + (j + lane % 8 + lane / 16 * 8) * pitch + k + lane / 8 % 2 * 8);
        else
            return load_matrices_transposed(tile + (k + lane % 16) * pitch + j + lane / 16 * 8);
    }
};

// A tile of rows x columns of the result. A warp's sums are [row_tiles][column_tiles][4] in the layout of
// mma.cuh: element [i][j][e] of a lane is row 16 i + row(e), column 8 j + column(e) of the warp's quarter.
template <class T, int rows, int columns, LineDirection a_lines, LineDirection b_lines>
struct ConvProductTile {
    using A = ConvOperand<T, rows, a_lines>;
    using B = ConvOperand<T, columns, b_lines>;
    static constexpr int row_tiles = rows / 32, column_tiles = columns / 16;
    static constexpr int stage = A::elements + B::elements;
    static std::size_t stages_bytes() { return conv_stages_on_device() * stage * sizeof(T); }
    using Sums = float[row_tiles][column_tiles][4];

    // Row and column in the tile of this lane's sums [i][j][e].
    static __device__ int row(int i, int e) {
        return conv_warp_row() * (rows / 2) + i * 16 + conv_lane() / 4 + e / 2 * 8;
    }
    static __device__ int column(int j) {
        return conv_warp_column() * (columns / 2) + j * 8 + conv_lane() % 4 * 2;
    }

    static __device__ void add_stage(Sums& sums, const T* a, const T* b) {
        MEZZO_UNROLL
        for (int k = 0; k < conv_depth; k += 16) {
            Frag4 left[row_tiles];
            MEZZO_UNROLL
            for (int i = 0; i < row_tiles; ++i)
                left[i] = A::rows(a, conv_warp_row() * (rows / 2) + i * 16, k);
            MEZZO_UNROLL
            for (int j = 0; j < column_tiles; j += 2) {
                const Frag4 right = B::columns(b, conv_warp_column() * (columns / 2) + j * 8, k);
                MEZZO_UNROLL
                for (int i = 0; i < row_tiles; ++i) {
                    multiply_add(T(), sums[i][j], left[i], {{right.v[0], right.v[1]}});
                    multiply_add(T(), sums[i][j + 1], left[i], {{right.v[2], right.v[3]}});
                }
            }
        }
    }

    // sums = the products of `steps` steps. fetch_a(step, to) and fetch_b(step, to) start a thread's copies
    // of one step. All threads call it, and may overwrite the stages afterwards.
    template <class FetchA, class FetchB> static __device__ void multiply(Sums& sums, T* stages, int steps,
                                                                          const FetchA& fetch_a,
                                                                          const FetchB& fetch_b) {
        const auto fetch = [&](int step) {
            T* const to = stages + step % conv_stages * stage;
            if (step < steps) {
                fetch_a(step, to);
                fetch_b(step, to + A::elements);
            }
            copy_async_commit();  // a group without copies, too, so that waits count steps
        };
        MEZZO_UNROLL
        for (int i = 0; i < row_tiles; ++i) {
            MEZZO_UNROLL
            for (int j = 0; j < column_tiles; ++j)
                sums[i][j][0] = sums[i][j][1] = sums[i][j][2] = sums[i][j][3] = 0;
        }
        __syncthreads();  // what the caller had in the stages has been read
        for (int step = 0; step < conv_stages - 1; ++step) fetch(step);
        for (int step = 0; step < steps; ++step) {
            copy_async_wait<conv_stages - 2>();
            __syncthreads();  // all threads see this stage, and none reads the one before it any more
            fetch(step + conv_stages - 1);
            const T* const tile = stages + step % conv_stages * stage;
            add_stage(sums, tile, tile + A::elements);
        }
        copy_async_wait<0>();
        __syncthreads();
    }
};

inline bool conv_aligned(const Tensor& x) { return reinterpret_cast<std::uintptr_t>(raw(x)) % 16 == 0; }

// Requirements of all three implicit products on the problem.
inline bool implicit_takes(const ConvSizes& s, const Tensor& a, const Tensor& b) {
    constexpr std::int64_t limit = std::int64_t(1) << 30;
    const std::int64_t result = s.pixels() * s.result_channels;
    const std::int64_t padded =
        (s.height + 2 * s.geometry.padding.height) * (s.width + 2 * s.geometry.padding.width);
    return multiplies_on_tensor_cores(a.device().index, a.dtype()) && a.dtype() == b.dtype() &&
           s.geometry.groups == 1 && s.channels % 8 == 0 && s.result_channels % 8 == 0 && conv_aligned(a) &&
           conv_aligned(b) && result > 0 && s.images * s.height * s.width * s.channels < limit &&
           result < limit && s.result_channels * s.window() < limit && padded < limit &&
           padded * s.channels < limit && padded * s.result_channels < limit && s.window() > 0 &&
           !s.is_product();
}

inline std::int64_t tiles_of(std::int64_t size, int tile) { return (size + tile - 1) / tile; }

// Blocks that fill a device; a constant, so that results do not depend on the device.
inline constexpr std::int64_t conv_full_device = 132;

}  // namespace mezzo::cuda
