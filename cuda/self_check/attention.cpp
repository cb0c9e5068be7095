// Compares flash attention with the kernels without Tensor Cores. Lengths are no multiples of any tile, and
// longer than one; a second problem has a mask, causality and dropout.
#include <cmath>

#include "core/tensor_impl.h"
#include "cuda/attention/attention.h"
#include "cuda/runtime/runtime.h"
#include "cuda/self_check/compare.h"
#include "cuda/self_check/self_checks.h"

namespace mezzo::cuda {
namespace {

constexpr const char* forward_name = "flash attention";
constexpr const char* backward_name = "gradient of flash attention";

struct Problem {
    std::int64_t query, key;
    bool hides;  // by a mask and causality, with dropout
};
constexpr std::int64_t heads = 2;
constexpr Problem problems[] = {{37, 139, false}, {141, 175, true}};

// A boolean view of [1, heads, query, key] that hides every fifth key.
Tensor mask_for(const Problem& p) {
    const Tensor keys = result_of({p.key}, boolean);
    std::vector<char> values(std::size_t(p.key), 1);
    for (std::size_t i = 3; i < values.size(); i += 5) values[i] = 0;
    copy_to_device(raw(keys), values.data(), values.size());
    return keys.expand({1, heads, p.query, p.key});
}

struct Attended {
    Tensor q, k, v, mask, y, largest, sum;
    kernels::ScaledDotProductAttention at;

    Attended(const Problem& p, Dtype dtype, std::int64_t dim)
        : q(input_of({1, p.query, heads, dim}, dtype, 1)),
          k(input_of({1, p.key, heads, dim}, dtype, 2)),
          v(input_of({1, p.key, heads, dim}, dtype, 3)),
          y(result_of(q.shape(), dtype)),
          largest(result_of({1, heads, p.query}, float32)),
          sum(result_of({1, heads, p.query}, float32)),
          at{.scale = 4 / std::sqrt(double(dim))} {
        if (p.hides) {
            mask = mask_for(p);
            at.causal = true;
            at.dropout_p = 0.125;
            at.stream = {12, 34};
        }
    }
    bool forward(AttentionWay way) const {
        const Tensor in[] = {q, k, v, mask}, out[] = {y, largest, sum};
        return attention_forward(in, at, out, way);
    }
};

}  // namespace

void check_attention(const SelfCheck& self_check) {
    for (const Problem& p : problems) {
        const Attended plain(p, self_check.dtype, self_check.size),
            fast(p, self_check.dtype, self_check.size);
        plain.forward(AttentionWay::plain);
        require_taken(forward_name, fast.forward(AttentionWay::flash));
        // Weights are rounded to 16 bit before they are multiplied.
        require_close(forward_name, fast.y, plain.y, 4 * rounding_of(self_check.dtype));
        require_close(forward_name, fast.largest, plain.largest, 0x1p-18);
        require_close(forward_name, fast.sum, plain.sum, 0x1p-10);
    }
}

void check_attention_grad(const SelfCheck& self_check) {
    for (const Problem& p : problems) {
        const Attended x(p, self_check.dtype, self_check.size);
        x.forward(AttentionWay::plain);
        const Tensor g = input_of(x.y.shape(), self_check.dtype, 4);
        const Tensor in[] = {g, x.q, x.k, x.v, x.y, x.largest, x.sum, x.mask};
        Tensors plain, fast;
        for (const Tensor& operand : {x.q, x.k, x.v}) {
            plain.push_back(result_of(operand.shape(), self_check.dtype));
            fast.push_back(result_of(operand.shape(), self_check.dtype));
        }
        attention_backward(in, {x.at}, plain, AttentionWay::plain);
        require_taken(backward_name, attention_backward(in, {x.at}, fast, AttentionWay::flash));
        for (std::size_t i = 0; i < plain.size(); ++i)
            require_close(backward_name, fast[i], plain[i], 8 * rounding_of(self_check.dtype));
    }
}

}  // namespace mezzo::cuda
