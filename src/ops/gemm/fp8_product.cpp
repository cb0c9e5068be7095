// A GPU's backend has a kernel for codes. On other devices the codes are converted to bfloat16, which
// is exact, and multiplied there with sums in float32: what Tensor Cores compute.
#include "ops/gemm/fp8_product.h"

#include "kernels/dispatch.h"
#include "kernels/fp8.h"
#include "ops/gemm/linear.h"
#include "ops/gemm/products.h"

namespace mezzo {

namespace {

const KernelCache fp8_product_kernel(kernel_id<kernels::Fp8Product>);

// The product in float32. Sums are divided by the larger scale first: the product of the scales, or the sums
// divided by the smaller one, may leave the range of float32.
Tensor product_as_bfloat16(const Quantized& a, const Quantized& b) {
    const Tensor sums = product_as(cast(a.codes, bfloat16), cast(b.codes, bfloat16).t(), float32);
    const Tensor other = b.scale.t();
    return sums / maximum(a.scale, other) / minimum(a.scale, other);
}

// True if bfloat16 holds all numbers that codes and scales of blocks give. It has the range of float32, but
// products take its numbers below 2^-126 for zero, and codes go down to 2^-16. False on other devices than
// the CPU, where the host would have to wait for the scales.
bool fits_bfloat16(const Quantized& q) {
    return q.codes.device().type() == DeviceType::cpu && q.scale.numel() > 0 &&
           max(q.scale).item<float>() <= 0x1p110f;
}

// The product of matrices with scales of blocks. Their numbers are exact in float32 and mostly in bfloat16,
// and so each term is that of the codes times its factors. dequantize() keeps them finite: a code of 256 with
// a factor of 2^120 becomes the largest number.
Tensor product_of_blocks(const Quantized& a, const Quantized& b) {
    const Dtype dtype = fits_bfloat16(a) && fits_bfloat16(b) ? bfloat16 : float32;
    return product_as(dequantize(a, dtype), dequantize(b, dtype).t(), float32);
}

Tensor inverse_of(const Quantized& q) {
    return (q.inverse.defined() ? q.inverse : 1.0 / q.scale).contiguous();
}

bool is_e5m2(const Quantized& q) { return q.codes.dtype() == float8_e5m2; }

bool has_one_scale(const Quantized& q) { return q.scale.size(0) == 1 && !has_blocks(q); }

// The kernel that multiplies the codes, or null.
AnyKernel* kernel_of(const Quantized& a, const Quantized& b) {
    const bool one = has_one_scale(a) && has_one_scale(b);
    const bool each = a.scale.size(0) == a.codes.size(0) && b.scale.size(0) == b.codes.size(0);
    if ((!one && !each) || has_blocks(a) != has_blocks(b) || (is_e5m2(a) && is_e5m2(b))) return nullptr;
    return fp8_product_kernel.on(a.codes.device().type());
}

Fp8Result run(AnyKernel* kernel, const Quantized& a, const Quantized& b, const Tensor& bias,
              const Fp8Epilogue& e) {
    const TensorOptions options{.dtype = e.dtype, .device = a.codes.device()};
    const Shape shape{a.codes.size(0), b.codes.size(0)};
    Tensors out{empty(shape, options)};
    if (e.saves_pre_activation) out.push_back(empty(shape, options));
    const Tensors in{a.codes.contiguous(), b.codes.contiguous(), inverse_of(a), inverse_of(b),
                     bias.defined() ? cast(bias, e.dtype) : bias};
    const bool one = has_one_scale(a) && has_one_scale(b);
    const kernels::Fp8Product at{e.activation, has_blocks(a) ? Granularity::block32
                                               : one         ? Granularity::tensor
                                                             : Granularity::row};
    kernel(in, &at, out);
    return {out[0], e.saves_pre_activation ? out[1] : Tensor()};
}

}  // namespace

Tensor product(const Quantized& a, const Quantized& b) { return product(a, b, {}, {}).y; }

Fp8Result product(const Quantized& a, const Quantized& b, const Tensor& bias, const Fp8Epilogue& e) {
    if (AnyKernel* const kernel = kernel_of(a, b)) return run(kernel, a, b, bias, e);
    Tensor z = has_blocks(a) ? product_of_blocks(a, b) : product_as_bfloat16(a, b);
    if (bias.defined()) z = z + cast(bias, float32);
    return {cast(activated(z, e.activation), e.dtype), e.saves_pre_activation ? cast(z, e.dtype) : Tensor()};
}

Quantized transposed(const Quantized& q) { return {q.codes.t(), q.scale, q.inverse}; }

}  // namespace mezzo
