// Row-major matrix products on the GPU, through cached cuBLASLt plans.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/activation.h"
#include "mezzo/dtype.h"
#include "mezzo/matmul_precision.h"

namespace mezzo {
struct GemmPlanStore;  // kernels/gemm_plan.h
}

namespace mezzo::cuda {

// C[m,n] = activation(alpha op(A)[m,k] op(B)[k,n] + beta C + bias[n]), row-major, for each of `batch`
// matrices that lie stride elements apart (stride 0: the same matrix for all). With `saved` it computes the
// gradient with respect to the input of an activation instead: C = alpha op(A) op(B) activation'(saved).
// Operands may be float16, bfloat16, float32 or float64 in any mix; products are summed in float, in double
// if any operand is float64. try_gemm() multiplies float8 codes, with scales:
// C[i,j] = activation(alpha a_scale[i] b_scale[j] (op(A) op(B))[i,j] + beta C[i,j] + bias[j]). Factors of
// blocks multiply the sums of the blocks.
struct Gemm {
    std::int64_t m = 0, n = 0, k = 0;
    bool trans_a = false, trans_b = false;  // A is stored k x m, B is stored n x k
    const void* a = nullptr;
    Dtype a_type = float32;
    std::int64_t lda = 0;
    const void* b = nullptr;
    Dtype b_type = float32;
    std::int64_t ldb = 0;
    void* c = nullptr;
    Dtype c_type = float32;
    std::int64_t ldc = 0;
    const void* bias = nullptr;  // [n], added to every row; may be null
    Dtype bias_type = float32;
    // If given, the value before the activation is stored here, in C's type and layout.
    void* pre_activation = nullptr;
    // The activation's result for relu, its input for the others, in C's type and layout.
    const void* saved = nullptr;
    void* bias_grad = nullptr;  // [n], with `saved`, if wanted: the column sums of C, in bias_grad_type()
    // [m], if wanted: the sums of op(A)'s rows over k, in bias_grad_type(). A is then stored k x m without
    // gaps, there is one matrix, and nothing but the product is done to C.
    void* a_sums = nullptr;
    // For relu only: relu_mask_ld(n) bits per row (kernels/activation.h). Without `saved`, the mask of C is
    // stored here, if wanted. With `saved`, it is that matrix's mask, for epilogues that read a mask instead.
    // A product with a mask or `saved` is one matrix without gaps: batch 1, ldc = n.
    void* mask = nullptr;
    Activation activation = Activation::none;
    float alpha = 1, beta = 0;  // beta must be 0 with an activation
    std::int64_t batch = 1, stride_a = 0, stride_b = 0, stride_c = 0;
    // For float8 codes, in device memory: one factor each; m and n of them for rows of op(A) and columns of
    // op(B); or for blocks of those E8M0 factors in tiles (cuda/gemm/fp8.h). float32 but for blocks.
    const void *a_scale = nullptr, *b_scale = nullptr;
    Granularity scales = Granularity::tensor;
};

// Enqueues the product on the current stream. The first call of a new shape may synchronise.
void gemm(const Gemm& g);

// Multiplies float8 codes by the library, and returns true. Returns false if the library does not compute the
// product; C may then have been written. gemm_fallbacks() counts such a product, unless the device, the
// library's version or the operands are outside of what cuBLASLt documents for float8.
bool try_gemm(const Gemm& g);

// Device memory that this process holds as GEMM workspace, for all devices together, in bytes; memory_stats()
// counts it among the live blocks.
std::size_t workspace_bytes();

// The chosen algorithms, for files of GEMM plans.
extern const GemmPlanStore plan_store;

// Drops all plans: the next call of each shape queries the library again.
void clear_gemm_plans();

// Parts of gemm() that have a separate kernel.

// C = activation(input + bias): the part of a product that the library's epilogue does not do. Also stores
// the sum if pre_activation is set.
void gemm_epilogue(const Gemm& g, const void* input);

// Stores the bias as every row of `matrix`, which has C's type and layout.
void gemm_bias_rows(const Gemm& g, void* matrix);

// Stores the mask of C, which is the result of relu.
void gemm_mask(const Gemm& g);

// C = C activation'(saved), read from the mask if there is one, and its column sums: the part of a product
// with `saved` that the library does not do.
void gemm_activation_grad(const Gemm& g);
// bias_grad = the column sums of C.
void gemm_bias_grad(const Gemm& g);
// a_sums = the sums of op(A)'s rows.
void gemm_a_sums(const Gemm& g);

// All of `g` but mask, gradient and sums, by mezzo's own kernel: any mix of types, any size, k == 0 included.
void gemm_fallback(const Gemm& g);

}  // namespace mezzo::cuda
