// The gradients of a linear layer's weight and bias by one kernel.
#include "core/rows.h"
#include "kernels/dispatch.h"
#include "kernels/linear_weight_grad.h"
#include "ops/products.h"

namespace mezzo {

namespace {

const OpOf<kernels::LinearWeightGrad> linear_weight_grad_op{
    {.decomposition = [](In in, const kernels::LinearWeightGrad&) -> Tensors {
        return {matmul(in[0].t(), in[1]), column_sum(in[0], in[0].dtype())};
    }}};
const KernelOf<kernels::LinearWeightGrad> weight_grad_kernel;

}  // namespace

bool makes_weight_and_bias_grad(const Tensor& g, const Tensor& x, Dtype of_weight, Dtype of_bias) {
    return !grad_enabled() && linear_weight_grad_op.kernel(g.device().type()) != nullptr && g.dim() == 2 &&
           x.dim() == 2 && g.dtype() == x.dtype() && g.is_contiguous() && x.is_contiguous() &&
           !is_16bit(of_weight) && !is_16bit(of_bias);
}

WeightAndBias weight_and_bias_grad(const Tensor& g, const Tensor& x, const Tensor& existing) {
    const Dtype dtype = is_16bit(g.dtype()) ? float32 : g.dtype();
    if (!existing.defined()) {
        const Shape shapes[] = {{g.size(1), x.size(1)}, {g.size(1)}};
        const Tensor given[] = {g, x};
        const Tensors both = call(linear_weight_grad_op, given, {}, shapes, dtype);
        return {both[0], both[1]};
    }
    const Tensor bias = empty({g.size(1)}, {.dtype = dtype, .device = g.device()});
    const Tensor in[] = {g, x}, out[] = {as_rows(existing), bias};
    weight_grad_kernel(In(in), {.beta = 1}, Out(out));
    existing->storage->version.fetch_add(1, std::memory_order_relaxed);
    return {Tensor(), bias};
}

}  // namespace mezzo
