// One matrix product with few rows, few columns or no steps.
#pragma once

#include "cpu/isa/isa_tables.h"

namespace mezzo::cpu {

// Both have the requirements of multiply_one() (five_loops.h); `bias` is float32 or null.
void multiply_few_rows(const GemmKernels& kernels, const Gemm& g, const float* bias);
void multiply_few_columns(const GemmKernels& kernels, const Gemm& g, const float* bias);
// For k = 0.
void multiply_no_steps(const GemmKernels& kernels, const Gemm& g, const float* bias);
// Few rows, with Gemm::b_panels.
void multiply_panels(const GemmKernels& kernels, const Gemm& g, const float* bias);
// Few rows, with an op(B) of the transposed form that has 8-bit codes, and their scale [n, groups], of
// bfloat16 or float32.
struct CodeScale {
    const void* data;
    Dtype type;
    std::int64_t groups;
};
void multiply_codes(const GemmKernels& kernels, const Gemm& g, const CodeScale& scale);

}  // namespace mezzo::cpu
