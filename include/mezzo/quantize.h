// Numbers as 8-bit codes and scales: operands of products under Autocast with AutocastOptions::fp8, and
// weights for inference.
//
//   const Quantized q = quantize(x);           // x [64, 128] in float8_e4m3fn, one scale
//   const Tensor y = dequantize(q, bfloat16);  // codes / scale
//
//   net.eval();
//   nn::quantize_weights(net);                 // int8, 8.5 bits a weight
#pragma once

#include "mezzo/matmul_precision.h"
#include "mezzo/tensor.h"

#pragma GCC visibility push(default)

namespace mezzo {

struct QuantizeOptions {
    Dtype dtype = float8_e4m3fn;  // or float8_e5m2
    Granularity granularity = Granularity::tensor;
    // Scales that use all of the dtype's range, instead of the next smaller power of two. With powers of two
    // scaling is exact, so the codes of x and of 2^n x are equal. Not with Granularity::block32.
    bool exact_scale = false;
};
struct Quantized {
    Tensor codes;  // of x's shape, in options.dtype
    // float32, of x's shape with size 1 in each dimension that shares it. With Granularity::block32 the last
    // dimension has x.size(-1) / 32 scales.
    Tensor scale;
    // 1 / scale. With Granularity::block32 in float8_e8m0fnu: the factors of the MX formats. Otherwise in
    // float32, and undefined unless a device's kernel has computed it for products.
    Tensor inverse = {};
};
// codes = x scale, rounded to nearest even, where scale is top / max |x| rounded down to a power of two
// between 2^-126 and 2^126, and top is the dtype's largest number, 448 or 57344. The scale is 1 for elements
// that are all zero and next to one that is not finite. Infinities become NaN: E4M3 has none, and its largest
// number would hide an overflow from GradScaler. x is floating; computed in float32, without gradient. The
// host does not wait for the device. Error(dtype) for other dtypes, Error(shape) for blocks of a last
// dimension that is no multiple of 32, or for rows or blocks of a tensor without dimensions.
[[nodiscard]] Quantized quantize(const Tensor& x, const QuantizeOptions& options = {});
// codes / scale in float32, rounded to the dtype. Finite codes give finite numbers: those beyond the largest
// number of the dtype, or of float32, become that number. Error(shape) for a scale that is not shaped as
// above.
[[nodiscard]] Tensor dequantize(const Quantized& q, Dtype dtype = float32);

// The scale of an 8-bit weight, [out, groups] for codes [out, in]; undefined for other tensors. A weight is
// codes times scale, so the scale is the reciprocal of Quantized's.
[[nodiscard]] Tensor weight_scale(const Tensor& weight);
// The weight's numbers, codes times scale in float32 rounded to the dtype, without gradient. Error(value) for
// a tensor without a scale.
[[nodiscard]] Tensor dequantize_weight(const Tensor& weight, Dtype dtype = float32);

namespace nn {

class Module;

struct QuantizeWeightsOptions {
    Dtype dtype = int8;  // or float8_e4m3fn
    // int8: neighbouring in features that share a scale, a multiple of 32. A row whose length it does not
    // divide has one scale, and so has each row in float8_e4m3fn.
    std::int64_t group = 32;
};
// Replaces the weights of linear layers by 8-bit codes with scales, for inference: those of Linear and
// MultiheadAttention, and the output matrices of Gpt, Llama and BERT's heads, which may be token embeddings,
// too (Module::is_linear_weight()). The tensors stay the same objects, now of the codes' dtype, and lose
// requires_grad and their gradient; weights in 8 bit already stay as they are.
//
//   int8           scale = max |w| / 127 of a group in bfloat16, code = w / scale to the nearest
//   float8_e4m3fn  scale = max |w| / 448 of a row in float32
//
// linear(), merged_linear() and embedding() read such weights, other ops throw Error(dtype). Gradients of
// inputs work; the weight's own does not exist: set_requires_grad(), unfreeze() and optimizers throw
// Error(dtype).
//
// On the CPU products of up to 8 rows read the codes. Their sums overflow from |x| of about 1e35 on, because
// the scale comes after 32 codes. Products of more rows, in float64, and on other devices read a copy of the
// weight in the dtype of x.
//
// state_dict() has the codes as "weight" and the scale as "weight_scale"; load_state_dict() and
// io::load_weights() take weights in 8 bit and floating ones, for both kinds of module. Errors, with nothing
// changed: dtype for other dtypes, value for a group that is no positive multiple of 32, and value for a
// weight that is not finite.
void quantize_weights(Module& module, const QuantizeWeightsOptions& options = {});

}  // namespace nn
}  // namespace mezzo

#pragma GCC visibility pop
