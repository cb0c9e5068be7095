// Kernels around products of float8 codes.
#pragma once

#include "cuda/gemm/gemm.h"

namespace mezzo::cuda {

// C = activation(a_scale b_scale sums + bias), and the value before the activation, for float32 sums [m, n]
// that another product has made of the same codes. Multiplies by the smaller factor first, as the product of
// both may leave the range of float32.
void scale_sums(const Gemm& g, const float* sums);

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
