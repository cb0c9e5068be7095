// Test kernels, each of one instruction wrapper of cuda/mma.cuh. Pointers are device memory; one warp unless
// stated.
#pragma once

#include <cstdint>

#include "mezzo/dtype.h"

namespace mezzo::test {

// Eight elements per lane, [32][8], through shared memory; lane l copies its first 2 (l % 9) bytes.
void run_copy_async(const std::uint16_t* in, std::uint16_t* out);
// Three groups of copies of [32][8] each; out[n] has the data of group n, read as soon as a wait covers it.
void run_copy_groups(const std::uint16_t* in, std::uint16_t* out);
// Four 8 x 8 matrices [4][8][8] -> the registers of each lane as elements, [32][4][2].
void run_load_matrices(bool transposed, const std::uint16_t* in, std::uint16_t* out);
// Whether the first device has Tensor Cores for the dtype, which the next two need.
bool multiplies(Dtype dtype);
// d [16][8] = a [16][16] b [16][8] + d, float16 or bfloat16 operands.
void run_multiply_add(Dtype dtype, const void* a, const void* b, float* d);
// Packs a, which comes as two 16 x 8 float tiles: d [16][8] = round(x [16][16]) b [16][8].
void run_pack_operand(Dtype dtype, const float* x, const void* b, float* d);
// y[i] = 2^x[i] of 32 numbers.
void run_exp2(const float* x, float* y);

}  // namespace mezzo::test
