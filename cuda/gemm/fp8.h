// Kernels around products of float8 codes.
#pragma once

#include "cuda/gemm/gemm.h"
#include "kernels/functor_math.h"

namespace mezzo::cuda {

// C = activation(a_scale b_scale sums + bias), and the value before the activation, for float32 sums [m, n]
// that another product has made of the same codes. Multiplies by the smaller factor first, as the product of
// both may leave the range of float32. Factors of blocks are in the sums already.
void scale_sums(const Gemm& g, const float* sums);

// Factors of blocks as cuBLASLt reads them ("1D Block Scaling Factors Layout" of its documentation): tiles of
// 128 rows and 4 blocks of a row, first those of 128 rows. A tile has its rows i, i + 32, i + 64 and i + 96
// next to each other, 4 bytes each:
//
//     byte   0..3   4..7    8..11   12..15   16..19  ...  508..511
//     row    0      32      64      96       1            127
//
// Rows and blocks beyond the matrix have bytes of 0.
MEZZO_HD std::int64_t tiled_scale(std::int64_t row, std::int64_t block, std::int64_t blocks) {
    const std::int64_t tile = row / 128 * ((blocks + 3) / 4) + block / 4;
    return tile * 512 + row % 32 * 16 + row % 128 / 32 * 4 + block % 4;
}
inline std::int64_t tiled_scale_bytes(std::int64_t rows, std::int64_t blocks) {
    return (rows + 127) / 128 * ((blocks + 3) / 4) * 512;
}
// Copies the factors [rows, blocks] of two operands into tiles.
struct TiledScales {
    const void* plain;
    void* tiled;
    std::int64_t rows, blocks;
};
void tile_scales(const TiledScales& a, const TiledScales& b);

// Codes [n] with the E8M0 factors of their blocks, as float32 numbers.
void dequantize_blocks(const void* codes, Dtype dtype, const void* factors, std::int64_t n, float* to);

// Arguments of quantize_codes(): x [rows, cols] without gaps. Null for results that are not wanted.
struct QuantizeArguments {
    const void* x;
    Dtype x_type, dtype;  // float32 or 16 bit; float8_e4m3fn or float8_e5m2
    std::int64_t rows, cols;
    void *codes, *transposed;  // transposed: of one scale only
    float *scale, *inverse;
    bool by_row, exact;
    float factor;          // of the largest scale
    const float* history;  // of one scale: the magnitude that it is for, unless that is 0; or null
    float* own;            // of one scale: gets the largest magnitude of x; or null
};
// Codes and scales by the formulas of quantize(), in two launches, one with by_row.
void quantize_codes(const QuantizeArguments& q);

// Results for a matrix with scales of blocks along its rows. Null if they are not wanted.
struct BlockCodes {
    void* codes;    // [rows, cols]
    float* scale;   // [rows, cols / fp8_block]
    void* inverse;  // the same shape, in float8_e8m0fnu
};
// Arguments of quantize_blocks(): x [rows, cols] without gaps.
struct BlockArguments {
    const void* x;
    Dtype x_type, dtype;  // float32 or 16 bit; float8_e4m3fn or float8_e5m2
    std::int64_t rows, cols;
    BlockCodes matrix, transposed;
};
// Codes and scales by the formulas of quantize(), in one launch and one pass over x.
void quantize_blocks(const BlockArguments& q);

}  // namespace mezzo::cuda
