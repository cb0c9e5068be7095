// dropout. The mask is recomputed from the offset in the random stream and never stored.
#include "ops/dropout.h"

#include "kernels/random.h"

namespace mezzo {

namespace {

// The op is linear in x and its own transpose: its gradient is the same dropout of g.
const Op<kernels::Dropout> dropout_op{
    {.name = "dropout", .saves = save_none},
    [](const Node&, const kernels::Dropout& at, const Tensors& g) -> Tensors {
        return {dropout_at(g[0], at.p, at.stream)};
    }};

}  // namespace

void check_dropout(const char* op, double p) {
    check(p >= 0 && p < 1, ErrorKind::value, op, ": dropout probability ", p, " is outside [0, 1)");
}

Tensor dropout_at(const Tensor& x, double p, const RandomState& stream) {
    return p > 0 ? call(dropout_op, {x}, {.p = p, .stream = stream}, x.shape()) : x;
}

Tensor dropout(const Tensor& x, double p, bool training) {
    check_floating("dropout", x);
    check(p >= 0 && p <= 1, ErrorKind::value, "dropout: p ", p, " is outside [0, 1]");
    if (!training || p == 0) return x;
    if (p == 1) return masked_fill(x, ones({}, {.dtype = boolean, .device = x.device()}), 0);
    return with_dropout_stream(x.numel(),
                               [&](const RandomState& stream) { return dropout_at(x, p, stream); });
}

}  // namespace mezzo
