// rotary_embedding.
#include "core/enumerators.h"
#include "mezzo/attention_ops.h"
#include "ops/common.h"

namespace mezzo {

namespace {

struct RotaryEmbedding {
    static constexpr const char* name = "rotary_embedding";
    RotaryPairs pairs = RotaryPairs::halves;
};

// x, cos, sin -> x with its pairs turned.
Tensors rotated(In in, const RotaryEmbedding& at) {
    const Tensor &x = in[0], c = in[1].unsqueeze(-3), s = in[2].unsqueeze(-3);
    const std::int64_t half = x.size(3) / 2;
    const bool halves = at.pairs == RotaryPairs::halves;
    const Tensor a = halves ? x.slice(3, 0, half) : x.slice(3, 0, 2 * half, 2),
                 b = halves ? x.slice(3, half, 2 * half) : x.slice(3, 1, 2 * half, 2);
    const Tensors parts{a * c - b * s, b * c + a * s};
    return {halves ? cat(parts, 3) : stack(parts, 4).reshape(x.shape())};
}

const Op<RotaryEmbedding> rotary_embedding_op{{.strided = true, .mixed = true}, nullptr, rotated};

}  // namespace

Tensor rotary_embedding(const Tensor& x, const Tensor& cos, const Tensor& sin, RotaryPairs pairs) {
    const char* op = "rotary_embedding";
    check_enumerator(op, "pairs", pairs, RotaryPairs::neighbours);
    check_floating(op, x);
    check_floating(op, cos, "cos");
    check_floating(op, sin, "sin");
    check(x.dim() == 4 && x.size(3) % 2 == 0, ErrorKind::shape, op,
          ": x must be [batch, heads, length, dim] with an even dim, not ", x.shape());
    const Shape shared{x.size(2), x.size(3) / 2}, own{x.size(0), x.size(2), x.size(3) / 2};
    check(cos.shape() == sin.shape() && (cos.shape() == shared || cos.shape() == own), ErrorKind::shape, op,
          ": cos ", cos.shape(), " and sin ", sin.shape(), " are neither both ", shared, " nor both ", own,
          ", [length, dim / 2] or [batch, length, dim / 2] of x ", x.shape());
    return call(rotary_embedding_op, {x, cos.detach(), sin.detach()}, {.pairs = pairs}, x.shape());
}

}  // namespace mezzo
