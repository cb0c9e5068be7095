// Accuracy of products of float32 matrices.
//
//   set_float32_matmul_precision(Float32MatmulPrecision::high);
//   y = matmul(x, weight);  // TF32 on CUDA
#pragma once

#include "mezzo/cpp20.h"

#include <cstdint>

#pragma GCC visibility push(default)

namespace mezzo {

// Permitted arithmetic for float32 operands of matrix products, as in PyTorch's setting of the same name:
//   highest  float32 arithmetic throughout.
//   high     On CUDA: operands rounded to TF32 (11 significant bits). On CPUs with AMX: operands split into
//            three bfloat16 parts and six products of them, as accurate as float32 arithmetic for numbers of
//            magnitude 2e-31 and more; smaller ones lose bits.
//   medium   On CUDA: TF32. On CPUs with AMX: two bfloat16 parts, 16 significant bits, and three products.
// Sums are always float32. All levels are `highest` where the others are no faster: for few rows or columns,
// for operands of mixed types, and on other processors. docs/guide/numerics.md has the measured errors.
// 16-bit and float64 operands are not affected.
enum class Float32MatmulPrecision : std::uint8_t { highest, high, medium };

// Sets the precision of all later products in this process, from any thread. The default is `highest`.
void set_float32_matmul_precision(Float32MatmulPrecision precision);
[[nodiscard]] Float32MatmulPrecision float32_matmul_precision();

// The elements that share a scale of a quantized tensor: all, those of a row, which is the last dimension, or
// 32 consecutive ones of a row (MXFP8 of the OCP Microscaling Formats specification 1.0).
enum class Granularity : std::uint8_t { tensor, row, block32 };

namespace amp {

// Source of the scale of a float8 operand.
enum class Recipe : std::uint8_t {
    // The scale is computed from the operand's own largest element.
    current,
    // The scale is computed from the operand's largest elements in the last steps of the optimizer that
    // updates the weight. All backward passes of a step use the same scales. The first step has current
    // scales, and so have weights that no optimizer updates.
    delayed,
};
// Dtype of the operands of a weight's gradient dW = dy^T x.
enum class WeightGrad : std::uint8_t {
    fp8,  // dy and x are float8
    low,  // dy and x have the scope's 16-bit dtype: dW is more accurate, and a layer saves x in 16 bit
};
// Float8 products inside an Autocast scope: linear() and merged_linear() read float8 operands, all other ops
// stay in the scope's 16-bit dtype. Operands are quantized when they are read (quantize()), weights once for
// each change:
//
//   result           of         with a scale a tensor      with a scale a row or block
//   y = x W^T        x, W       E4M3, E4M3                 E4M3, E4M3
//   dx = dy W        dy, W      E5M2, E4M3                 E4M3, E4M3
//   dW = dy^T x      dy, x      E5M2, E4M3                 E4M3, E4M3
//
// Sums are float32; bias and activation come before the result is rounded to 16 bit, and dW is float32. A
// layer with one scale a tensor saves x as codes of one byte. Gradients of gradients take quantization for
// the identity; with create_graph, first gradients do, too. (Micikevicius et al., "FP8 Formats for Deep
// Learning", arXiv 2209.05433.)
struct Fp8 {
    Recipe recipe = Recipe::current;
    Granularity granularity = Granularity::tensor;
    bool exact_scale = false;  // QuantizeOptions::exact_scale; not with blocks
    WeightGrad weight_grad = WeightGrad::fp8;
    // Products with fewer rows of x, in or out features stay in 16 bit, as do those with a size that is no
    // multiple of 16, of 32 with scales of blocks, and weights of modules with set_fp8(false).
    std::int64_t least_size = 512;
    // Only Recipe::delayed reads `history` and `margin`; it needs Granularity::tensor. A scale is
    // top / (2^margin a), where a is the largest element in the last `history` steps (1 to 65536), and top is
    // the largest number of the dtype. Larger elements saturate. amp::Fp8State saves the history.
    int history = 16;
    double margin = 0;  // -64 to 64
};

}  // namespace amp
}  // namespace mezzo

#pragma GCC visibility pop
