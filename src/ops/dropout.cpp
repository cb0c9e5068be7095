// dropout: the mask is a function of the random stream's position, never stored.
#include "core/random.h"
#include "ops/common.h"
#include "ops/kernels.h"

namespace mezzo {

namespace {

Tensors dropout_vjp(const Call& c, const Tensors& g);

// Linear in x, with itself as its transpose.
const Op dropout_op{
    {.name = "dropout", .keep = keep_none, .kernel = MEZZO_KERNELS(dropout), .vjp = dropout_vjp}};

Tensors dropout_vjp(const Call& c, const Tensors& g) {
    return {call(dropout_op, {g[0]}, c.at, g[0].shape())};
}

}  // namespace

Tensor dropout(const Tensor& x, double p, bool training) {
    check_floating("dropout", x);
    check(p >= 0 && p <= 1, ErrorKind::value, "dropout: p ", p, " is outside [0, 1]");
    if (!training || p == 0) return x;
    if (p == 1) return masked_fill(x, ones({}, {.dtype = boolean, .device = x.device()}), 0);
    const RandomState state = reserve_random((std::uint64_t(x.numel()) + 7) / 8);
    return call(dropout_op, {x}, {.alpha = p, .seed = state.seed, .offset = state.offset}, x.shape());
}

}  // namespace mezzo
