// Merged linear layers: several linear layers of one input as one product. The gradient of the
// weights is one product, too, if their gradients are contiguous in memory.
#include "kernels/merged_linear.h"

#include <algorithm>
#include <numeric>

#include "autograd/autocast_state.h"
#include "mezzo/attention_ops.h"
#include "ops/gemm/linear.h"
#include "ops/gemm/products.h"

namespace mezzo {

namespace {

using At = kernels::MergedLinear;

bool biased(const Node& c, const At& at) { return c.inputs.size() > std::size_t(1 + at.parts); }

std::vector<std::int64_t> sizes_of(const Node& c, const At& at) {
    std::vector<std::int64_t> sizes;
    for (int i = 0; i < at.parts; ++i) sizes.push_back(c.inputs[std::size_t(1 + i)].shape[0]);
    return sizes;
}

// The columns of g [rows, sum of sizes] that belong to part i.
Tensor columns_of_part(const Tensor& g, const std::vector<std::int64_t>& sizes, int i) {
    const std::int64_t first = std::accumulate(sizes.begin(), sizes.begin() + i, std::int64_t(0));
    return g.slice(1, first, first + sizes[std::size_t(i)]);
}

// Whether the gradients of `parts` inputs from `first` on may be made as one tensor: all are requested, in
// one dtype. A recorded backward goes part by part, in ops that have gradients of their own.
bool made_together(const Node& c, int first, int parts) {
    bool together = !grad_enabled();
    for (int i = first; i < first + parts; ++i)
        together = together && c.needs(i) && c.grad_dtype(i) == c.grad_dtype(first);
    return together;
}

Tensor x_grad(const Node& c, const At& at, const Tensor& g) {
    Tensors weights;
    for (int i = 0; i < at.parts; ++i) weights.push_back(c.in(1 + i));
    Tensor whole = grad_enabled() ? Tensor() : as_one(weights);
    if (!whole.defined()) whole = cat(weights, 0);
    const Tensor grad = product_grad(c, 0, g, whole);
    return grad.defined() ? grad.reshape(c.inputs[0].shape) : grad;
}

// Computes the gradients of the weights as one product. It is added to existing gradients if these are
// contiguous in memory; new gradients are made so. Returns the column sums of g, if they were computed with
// it.
Tensor weight_grads(const Node& c, const At& at, const Tensor& g, Tensors& grads) {
    const Tensor x = matrix_of(c.in(0));
    const int first_bias = 1 + at.parts;
    const bool with_sums = biased(c, at) && made_together(c, first_bias, at.parts) &&
                           makes_weight_and_bias_grad(g, x, c.grad_dtype(1), c.grad_dtype(first_bias));
    const bool together = made_together(c, 1, at.parts);
    Tensors existing(std::size_t(at.parts));
    for (int i = 0; together && g.dtype() != float64 && i < at.parts; ++i)
        existing[std::size_t(i)] = c.accumulator(1 + i);
    if (const Tensor whole = as_one(existing); whole.defined()) {
        const Tensor sums = with_sums ? weight_and_bias_grad(g, x, whole).bias : Tensor();
        if (!with_sums) add_product(g.t(), x, whole);
        for (const Tensor& part : existing) part->storage->version.fetch_add(1, std::memory_order_relaxed);
        return sums;
    }
    const std::vector<std::int64_t> sizes = sizes_of(c, at);
    if (together &&
        std::none_of(existing.begin(), existing.end(), [](const Tensor& e) { return e.defined(); })) {
        const WeightAndBias made = with_sums ? weight_and_bias_grad(g, x, {})
                                             : WeightAndBias{product_as(g.t(), x, c.grad_dtype(1)), {}};
        const Tensors parts = cut_side_by_side(made.weight, sizes);
        std::copy(parts.begin(), parts.end(), grads.begin() + 1);
        return made.bias;
    }
    for (int i = 0; i < at.parts; ++i)
        if (c.needs(1 + i))
            grads[std::size_t(1 + i)] = product_grad(c, 1 + i, columns_of_part(g, sizes, i).t(), x);
    return {};
}

// `sums`: those of g's columns, if they have been made.
void bias_grads(const Node& c, const At& at, const Tensor& g, const Tensor& sums, Tensors& grads) {
    const int first = 1 + at.parts;
    const std::vector<std::int64_t> sizes = sizes_of(c, at);
    if (made_together(c, first, at.parts)) {
        const Tensors parts =
            cut_side_by_side(sums.defined() ? sums : bias_grad(g, c.grad_dtype(first)), sizes);
        std::copy(parts.begin(), parts.end(), grads.begin() + first);
        return;
    }
    for (int i = 0; i < at.parts; ++i)
        if (c.needs(first + i))
            grads[std::size_t(first + i)] = bias_grad(columns_of_part(g, sizes, i), c.grad_dtype(first + i));
}

Tensors merged_linear_vjp(const Node& c, const At& at, const Tensors& gs) {
    const Tensor g = gemm_ready(matrix_of(gs[0]));
    Tensors grads(c.inputs.size());
    if (c.needs(0)) grads[0] = x_grad(c, at, g);
    const Tensor sums = weight_grads(c, at, g, grads);
    if (biased(c, at)) bias_grads(c, at, g, sums, grads);
    return grads;
}

Tensors merged_linear_decomposition(In in, const At& at) {
    const auto parts = std::size_t(at.parts);
    Tensors results;
    for (std::size_t i = 1; i <= parts; ++i) {
        const Tensor y = matmul(in[0], in[i].t());
        results.push_back(in.size() > 1 + parts ? y + in[i + parts] : y);
    }
    return {cat(results, -1)};
}

// The scope's float8 products, if they take all of the weights; otherwise null.
const amp::Fp8* all_fp8(const Tensor& x, const Tensors& weights) {
    const amp::Fp8* const fp8 = scope_fp8(x.device());
    const bool all = fp8 != nullptr && std::none_of(weights.begin(), weights.end(), [&](const Tensor& w) {
                         return why_not_fp8(*fp8, x, w) != nullptr;
                     });
    return all ? fp8 : nullptr;
}

// The bias for a layer without one, if other layers have one.
Tensor zeros_for(const Tensor& weight) {
    return zeros({weight.size(0)}, {.dtype = weight.dtype(), .device = weight.device()});
}

// The results of one product for each weight.
Tensor concatenated(const Tensor& x, const Tensors& weights, const Tensors& biases) {
    Tensors parts;
    for (std::size_t i = 0; i < weights.size(); ++i)
        parts.push_back(linear(x, weights[i], biases.empty() ? Tensor() : biases[i]));
    return cat(parts, -1);
}

const Op<At> merged_linear_op{{.cast = CastPolicy::low, .saves = save_inputs, .fp8 = true},
                              merged_linear_vjp,
                              merged_linear_decomposition};

}  // namespace

Tensor merged_linear(const Tensor& x, const Tensors& weights, const Tensors& biases) {
    check(!weights.empty(), ErrorKind::value, "merged_linear: the list of weights is empty");
    check(biases.empty() || biases.size() == weights.size(), ErrorKind::value,
          "merged_linear: ", biases.size(), " biases for ", weights.size(),
          " weights; pass one for each, or none");
    Tensors given{x};
    std::int64_t columns = 0;
    bool biased = false;
    if (std::any_of(weights.begin(), weights.end(), is_quantized)) return concatenated(x, weights, biases);
    for (std::size_t i = 0; i < weights.size(); ++i) {
        check_linear("merged_linear", x, weights[i], biases.empty() ? Tensor() : biases[i]);
        biased = biased || (!biases.empty() && biases[i].defined());
        check(!__builtin_add_overflow(columns, weights[i].size(0), &columns), ErrorKind::shape,
              "merged_linear: the weights have more than 2^63 - 1 rows");
        given.push_back(weights[i]);
    }
    for (std::size_t i = 0; biased && i < weights.size(); ++i)
        given.push_back(biases[i].defined() ? biases[i] : zeros_for(weights[i]));
    if (const amp::Fp8* const fp8 = all_fp8(x, weights)) {
        const Tensors all_biases(given.begin() + 1 + std::ptrdiff_t(weights.size()), given.end());
        return linear_fp8(*fp8, x, weights, all_biases, Activation::none);
    }
    Shape shape = x.shape();
    shape.back() = columns;
    const At at{.parts = int(weights.size())};
    return call(merged_linear_op, given, at, std::span<const Shape>(&shape, 1))[0];
}

}  // namespace mezzo
