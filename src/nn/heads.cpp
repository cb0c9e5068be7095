// The heads of projections for attention.
#include "nn/heads.h"

#include <numeric>

#include "mezzo/autograd.h"
#include "mezzo/ops.h"

namespace mezzo::nn {

namespace {

Tensor heads_of(const Tensor& x, std::int64_t heads) {
    return x.reshape({x.size(0), x.size(1), heads, x.size(2) / heads}).permute({0, 2, 1, 3});
}

}  // namespace

// One user-defined function, because the gradients of separate slices would each be as large as x and have to
// be added.
Tensors split_heads(const Tensor& x, const std::vector<std::int64_t>& heads) {
    if (heads.size() == 1) return {heads_of(x, heads[0])};
    const std::int64_t dim = x.size(2) / std::accumulate(heads.begin(), heads.end(), std::int64_t(0));
    const auto forward = [&](autograd::Context&, const Tensors& in) {
        Tensors result;
        std::int64_t first = 0;
        for (const std::int64_t n : heads) {
            result.push_back(heads_of(in[0].slice(2, first, first + n * dim), n));
            first += n * dim;
        }
        return result;
    };
    const auto backward = [](autograd::Context&, const Tensors& g) {
        Tensors joined;
        for (const Tensor& part : g) joined.push_back(join_heads(part));
        return Tensors{cat(joined, 2)};
    };
    return autograd::apply_function({.name = "split_heads"}, forward, backward, {x});
}

Tensor join_heads(const Tensor& x) {
    return x.permute({0, 2, 1, 3}).reshape({x.size(0), x.size(2), x.size(1) * x.size(3)});
}

}  // namespace mezzo::nn
