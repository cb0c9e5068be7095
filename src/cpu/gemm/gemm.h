// Mixed-precision matrix product on the CPU: operands stored in 16 or 32 bits, arithmetic in float32.
#pragma once

#include <cstdint>

#include "kernels/activation.h"
#include "mezzo/dtype.h"

namespace mezzo::cpu {

// One product, or a strided batch of them, of row-major matrices:
//   C[m,n] = activation(alpha * op(A)[m,k] op(B)[k,n] + bias[n] + beta * C),   op(X) = X or its transpose.
// 16-bit operands are exact in float32. Sums are float32 or wider over the whole of k; float32 operands are
// rounded first only as far as float32_matmul_precision() allows. C is rounded once, to nearest even.
struct Gemm {
    std::int64_t m = 0, n = 0, k = 0;
    bool trans_a = false, trans_b = false;
    const void* a = nullptr;
    Dtype a_type = float32;
    std::int64_t lda = 0;  // element stride between rows of the stored matrix; so are ldb, ldc
    const void* b = nullptr;
    Dtype b_type = float32;
    std::int64_t ldb = 0;
    void* c = nullptr;
    Dtype c_type = float32;
    std::int64_t ldc = 0;
    const void* bias = nullptr;  // [n] or none
    Dtype bias_type = float32;
    void* pre_activation = nullptr;  // optional, layout and type of C: the value before the activation
    // Optional, layout of C, both float32: C is the gradient before `activation`, the value that it would be
    // without one times the derivative. `saved` is the activation's result for relu, its input otherwise.
    const void* saved = nullptr;
    Activation activation = Activation::none;
    // Optional, [m]: the sums over k of op(A)'s rows are added to it.
    double* a_sums = nullptr;
    // Optional, for an op(B) of the transposed form and C of few rows: the panels of op(B) (packed_weight.h),
    // which are then read instead of b.
    const void* b_panels = nullptr;
    // Optional, for operands of bfloat16 and an op(B) of the transposed form: op(B) as panels for tiles, read
    // instead of b where tiles multiply; b_tile_panel bytes from one panel to the next (packed_for_tiles()).
    const char* b_tiles = nullptr;
    std::int64_t b_tile_panel = 0;
    // Optional: the panels that pack_b() has made of op(B) for the kernels that multiply. Vectors may read
    // them instead of b.
    const float* b_packed = nullptr;
    float alpha = 1, beta = 0;    // C is read only if beta != 0
    const void* added = nullptr;  // read instead of C if beta != 0; layout and type of C
    std::int64_t batch = 1, stride_a = 0, stride_b = 0,
                 stride_c = 0;  // elements between matrices; 0 repeats a or b
};

// Computes `g` on the pool's threads. a, b and c are float16, bfloat16 or float32 in any mix, or all float64;
// throws Error(dtype) for anything else, and Error(value) if a leading dimension is too small or the outputs
// of a batch overlap.
void gemm(const Gemm& g);

// Whether gemm() can compute the gradient through the activation itself (Gemm::saved): of relu and gelu, if C
// is float32 and not computed on tiles.
bool takes_saved(const Gemm& g);
struct GemmKernels;
// For Gemm::b_packed: the kernels that gemm() chooses, or null if they would not read it; the number of
// floats that they read, or 0; and the packing for them. The same kernels have to multiply: gemm() may choose
// others next time.
const GemmKernels* packing_kernels(const Gemm& g);
std::int64_t packed_b(const GemmKernels& kernels, const Gemm& g);
void pack_b(const GemmKernels& kernels, const Gemm& g, float* to);
// Whether gemm() can compute Gemm::a_sums: if it packs all of op(A).
bool makes_a_sums(const Gemm& g);

}  // namespace mezzo::cpu
