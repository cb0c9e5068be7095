// Codes are converted to bfloat16, which is exact, and multiplied there with sums in float32: what Tensor
// Cores compute, on every device.
#include "ops/fp8_product.h"

#include "ops/products.h"

namespace mezzo {

// Sums are divided by the larger scale first: the product of the scales, or the sums divided by the smaller
// one, may leave the range of float32.
Tensor product(const Quantized& a, const Quantized& b) {
    const Tensor sums = product_as(cast(a.codes, bfloat16), cast(b.codes, bfloat16).t(), float32);
    const Tensor other = b.scale.t();
    return sums / maximum(a.scale, other) / minimum(a.scale, other);
}

Quantized transposed(const Quantized& q) { return {q.codes.t(), q.scale}; }

}  // namespace mezzo
