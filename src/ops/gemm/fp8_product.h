// Products of quantized matrices.
#pragma once

#include "kernels/activation.h"
#include "mezzo/quantize.h"
#include "ops/common.h"

namespace mezzo {

inline bool has_blocks(const Quantized& q) {
    return q.inverse.defined() && q.inverse.dtype() == float8_e8m0fnu;
}

// a b^T for a [m, k] and b [n, k], in float32. Each has one scale, one for each row, or both have one
// for each block.
Tensor product(const Quantized& a, const Quantized& b);

// z = a b^T + bias and activation(z), rounded to `dtype` once. The bias [n] may be undefined.
struct Fp8Epilogue {
    Dtype dtype = float32;
    Activation activation = Activation::none;
    bool saves_pre_activation = false;
};
struct Fp8Result {
    Tensor y, pre_activation = {};
};
Fp8Result product(const Quantized& a, const Quantized& b, const Tensor& bias, const Fp8Epilogue& epilogue);

// The transposed matrix, for a tensor with one scale. With scales of rows codes are made anew, because the
// groups that share a scale are others.
Quantized transposed(const Quantized& q);

// x [rows, cols] and the transposed matrix. Products of GPUs read codes along their rows, so their kernel
// writes both in one pass unless rows have scales; elsewhere both share their memory if x has one scale. The
// codes of a matrix that is not wanted may be undefined.
struct QuantizedBoth {
    Quantized matrix, transposed;
};
enum class Wanted : std::uint8_t { matrix, transposed, both };
QuantizedBoth quantize_both(const Tensor& x, const QuantizeOptions& options, Wanted wanted = Wanted::both);

// Codes, and with Recipe::delayed the largest magnitude [1, 1] of what they were made of.
struct Fp8Codes {
    QuantizedBoth both;
    Tensor largest = {};
};
// quantize_both() with the scale for the magnitude in `history` [1, 1], divided by 2^margin; larger elements
// saturate. A history of 0 stands for the largest magnitude of x. Always both: the history may be another one
// when the other codes are wanted.
Fp8Codes quantize_delayed(const Tensor& x, const Tensor& history, const QuantizeOptions& options,
                          double margin);

}  // namespace mezzo
