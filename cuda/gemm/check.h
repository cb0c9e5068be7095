// Kernels for the check of a GEMM algorithm: they generate operands and compare results. Matrices are
// column-major.
#pragma once

#include <cstdint>

#include "cuda/gemm/fp8.h"
#include "kernels/fp8.h"
#include "kernels/gemm_plan.h"

namespace mezzo::cuda {

// Expected value of D[i,j] in a trial, in units of the number of terms.
enum class Trial : std::uint8_t {
    ones,      // 1
    signs,     // relu(a(i) b(j)), from operands whose rows and columns have signs -1, 0 or 1, some rows NaN
    products,  // a(i) b(j), from the same operands
    bits,      // 0 or 1, by a mask
    slopes,    // 0, 1/2 or 1, the derivatives of gelu_tanh at -16, 0 and 16
    scales,    // the factors of row i and column j of float8 operands, from matrices of ones
    // The factors of one block of row i and column j. Row i of A has a single one, in that block; B has ones.
    blocks,
};

// One operand of a trial: ones, in a trial of signs or products multiplied by the sign of the row of A or
// column of B. With tail > 0 only the last `tail` of the k terms are ones, the others are zeros.
struct TrialOperand {
    void* matrix;
    Dtype dtype;
    std::int64_t elements, ld, stride;
    bool k_is_row;
    std::int64_t k, tail;
    double first;  // of the terms; the others are ones
    bool is_b;     // the columns of B have other signs than the rows of A
};
void fill_operand(const TrialOperand& operand, Trial trial);

// Fill the mask, and the matrix, that a gradient epilogue reads in a trial of ones, bits or slopes.
void fill_mask(void* mask, std::int64_t m, std::int64_t n, Trial trial);
void fill_before(void* matrix, Dtype dtype, std::int64_t m, std::int64_t n, std::int64_t ld, Trial trial);

// Bytes of the factors of a float8 operand with so many rows or columns.
inline std::int64_t scale_bytes(const gemm_plan::Problem& p, std::int64_t lines) {
    if (p.scales == Granularity::block32) return tiled_scale_bytes(lines, p.k / kernels::fp8_block);
    return (p.scales == Granularity::row ? lines : 1) * std::int64_t(sizeof(float));
}
// Fills the factors of A or B with a power of two, in a trial of scales or blocks with several. The power is:
inline constexpr double first_a_scale = 8, first_b_scale = 0.25;
void fill_scales(void* scales, const gemm_plan::Problem& p, bool is_b, Trial trial);

// Number of elements of the m x n matrices that differ from `unit` times the trial's expected value. Waits
// for the result.
struct TrialResult {
    const void* matrix;
    Dtype dtype;
    std::int64_t m, n, k, ld, batch, stride;
};
std::int64_t count_different(const TrialResult& result, Trial trial, double unit);

// Number of wrong bits in the mask of D; bits beyond m do not count.
std::int64_t count_different_bits(const void* mask, std::int64_t m, std::int64_t n, Trial trial);

// Number of wrong sums of D's rows.
std::int64_t count_different_sums(const void* sums, Dtype dtype, std::int64_t m, std::int64_t n, Trial trial,
                                  double unit);

// Number of wrong sums of B's columns, which have `unit` terms.
std::int64_t count_different_b_sums(const void* sums, Dtype dtype, std::int64_t n, Trial trial, double unit);

}  // namespace mezzo::cuda
