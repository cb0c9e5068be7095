// Tables of attention kernels per instruction set: matrix products, and the loops between them on the blocks
// of scores that GemmKernels::tile computes.
#pragma once

#include <cstdint>

#include "cpu/isa/isa_tables.h"

namespace mezzo::cpu {

// A block of scores with a row per key and a column per query, and the running statistics of every query. All
// rows have memory up to a multiple of the vector width.
struct SoftmaxBlock {
    float* t;         // [rows, ld]: scores, then e^(score - maximum) of scaled scores
    std::int64_t ld;  // also that of `sums`
    std::int64_t rows, columns;
    float scale;             // of the scores, times log2 e: exponentials are powers of two
    float *maximum, *total;  // per column: largest score, not scaled, and the sum of the exponentials
    float* sums;             // [dim, ld]: rescaled when the maximum rises; null before the first block
    std::int64_t dim;
};

// A block with a row per query and a column per key.
struct SoftmaxGradBlock {
    float* t;  // [rows, ld]: scores, then weights
    float* u;  // [rows, ld]: gradients of the (dropped) weights, then of the scaled scores
    std::int64_t ld, rows, columns;
    float scale;            // of the scores, times log2 e
    float kept_scale;       // of the gradients of weights: 1 / (1 - dropout_p)
    const float* maximum;   // per row: the largest score, not scaled; inf makes all weights 0
    const float* log2_sum;  // per row: of the exponentials of scaled scores less the largest, to base 2
    const float* delta;     // per row: sum over the keys of weight times its gradient
};

struct AttentionKernels {
    // float32 panels, packing and tile() only: attention chooses its own cache blocks, and gemm_kernels() has
    // the epilogue. If a table has none, those of GEMM for the same instruction set.
    GemmKernels gemm;
    void (*softmax)(const SoftmaxBlock& b);
    void (*softmax_grad)(const SoftmaxGradBlock& b);
    // t = keep ? t : otherwise, element by element.
    void (*keep)(float* t, const std::uint8_t* keep, std::int64_t n, float otherwise);
    // Multiplies sums[dim, columns] by factor / total of the column, or by 0 where the total is 0.
    void (*divide)(float* sums, std::int64_t ld, std::int64_t dim, std::int64_t columns, const float* total,
                   float factor);
    // dst[i] = the dot product of row i of x and of y, n long; float16, bfloat16 or float32.
    void (*row_dots)(const Operand& x, const Operand& y, std::int64_t rows, std::int64_t n, float* dst);
};

// Tables of instruction sets that the compiler lacks are empty.
extern const AttentionKernels attention_portable, attention_avx2, attention_avx512;

// The kernels of active_isa().
const AttentionKernels& active_attention_kernels();

}  // namespace mezzo::cpu
