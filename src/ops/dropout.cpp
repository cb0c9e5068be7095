// dropout: the mask is a function of the random stream's position, never stored.
#include "ops/dropout.h"

#include "core/random.h"
#include "kernels/kernels.h"

namespace mezzo {

namespace {

Tensors dropout_vjp(const Node& c, const Tensors& g) { return {dropout_at(g[0], c.at)}; }

// Linear in x, with itself as its transpose.
const Op dropout_op{
    {.name = "dropout", .save = save_none, .kernel = MEZZO_KERNELS(dropout), .vjp = dropout_vjp}};

}  // namespace

void check_dropout(const char* op, double p) {
    check(p >= 0 && p < 1, ErrorKind::value, op, ": dropout probability ", p, " is outside [0, 1)");
}

Attrs reserve_dropout(double p, std::int64_t elements) {
    const RandomState state = reserve_random((std::uint64_t(elements) + 7) / 8);
    return {.alpha = p, .seed = state.seed, .offset = state.offset};
}

Tensor dropout_at(const Tensor& x, const Attrs& at) {
    return call(dropout_op, {x}, {.alpha = at.alpha, .seed = at.seed, .offset = at.offset}, x.shape());
}

Tensor dropout(const Tensor& x, double p, bool training) {
    check_floating("dropout", x);
    check(p >= 0 && p <= 1, ErrorKind::value, "dropout: p ", p, " is outside [0, 1]");
    if (!training || p == 0) return x;
    if (p == 1) return masked_fill(x, ones({}, {.dtype = boolean, .device = x.device()}), 0);
    return dropout_at(x, reserve_dropout(p, x.numel()));
}

}  // namespace mezzo
