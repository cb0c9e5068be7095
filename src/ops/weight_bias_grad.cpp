// The gradients of a linear layer's weight and bias by one kernel.
#include "core/rows.h"
#include "kernels/dispatch.h"
#include "kernels/linear_weight_grad.h"
#include "ops/products.h"

namespace mezzo {

namespace {

const KernelCache weight_grad_kernel(kernel_id<kernels::LinearWeightGrad>);

}  // namespace

bool makes_weight_and_bias_grad(const Tensor& g, const Tensor& x, Dtype of_weight, Dtype of_bias) {
    return !grad_enabled() && weight_grad_kernel.on(g.device().type()) != nullptr && g.dim() == 2 &&
           x.dim() == 2 && g.dtype() == x.dtype() && g.is_contiguous() && x.is_contiguous() &&
           !is_16bit(of_weight) && !is_16bit(of_bias);
}

WeightAndBias weight_and_bias_grad(const Tensor& g, const Tensor& x, const Tensor& existing) {
    const Dtype dtype = is_16bit(g.dtype()) ? float32 : g.dtype();
    const TensorOptions options{.dtype = dtype, .device = g.device()};
    const Tensor weight = existing.defined() ? as_rows(existing) : empty({g.size(1), x.size(1)}, options);
    const Tensor in[] = {g, x}, out[] = {weight, empty({g.size(1)}, options)};
    const kernels::LinearWeightGrad at{.beta = existing.defined() ? 1.0 : 0.0};
    weight_grad_kernel.on(g.device().type())(In(in), &at, Out(out));
    if (existing.defined()) existing->storage->version.fetch_add(1, std::memory_order_relaxed);
    return {existing.defined() ? Tensor() : weight, out[1]};
}

}  // namespace mezzo
