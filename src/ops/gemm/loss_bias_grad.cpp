// The gradients of mse_loss by the result of a linear layer and by the layer's bias, in one kernel.
#include "kernels/loss.h"
#include "kernels/matmul.h"
#include "ops/gemm/linear.h"
#include "ops/gemm/products.h"
#include "ops/loss/loss_common.h"

namespace mezzo {

namespace {

const Op<kernels::MseLossBiasGrad> mse_loss_bias_grad_op{
    {.mixed = true, .first_float32_result = 1},
    nullptr,
    [](In in, const kernels::MseLossBiasGrad& at) -> Tensors {
        const Tensor of_value = spread_loss_grad(in[2], at.reduction, double(in[0].numel()));
        const Tensor gradient = 2.0 * (of_value * (in[0] - in[1]));
        return {gradient, column_sum(gradient, gradient.dtype())};
    }};

bool is_plain_linear(const Node& node) {
    return node.op->is<kernels::Linear>() && node.op->traits().fused_gradients != 0 &&
           node.attributes.as<kernels::Linear>().activation == Activation::none;
}

// Whether input 0 is the result of a linear layer with a bias, whose gradients come from this loss alone. A
// recorded backward goes step by step, in ops that have gradients of their own.
bool takes_bias_grad(const Node& c) {
    if (grad_enabled() || c.needs(1) || !c.sole_consumer(0)) return false;
    const Node& below = *c.edges[0].node;
    return is_plain_linear(below) && below.inputs.size() > 2 && below.needs(2) &&
           below.outputs[0].dtype == c.grad_dtype(0);
}

// Whether the kernel reads these dtypes.
bool reads(const Tensor& input, const Tensor& target, const Tensor& g) {
    const bool wide = input.dtype() == float64;
    return (target.dtype() == input.dtype() || (is_16bit(input.dtype()) && target.dtype() == float32)) &&
           (g.dtype() == float64) == wide && g.dim() == 0;
}

}  // namespace

bool send_mse_loss_bias_grad(const Node& c, Reduction reduction, const Tensor& g) {
    if (!takes_bias_grad(c) || !fuses_bias_gradients(g.device(), c.grad_dtype(0))) return false;
    const Tensor input = c.in(0), target = c.in(1);
    if (input.dim() == 0 || !reads(input, target, g)) return false;
    const Tensor given[] = {matrix_of(input), matrix_of(target), g};
    const Shape shapes[] = {given[0].shape(), {given[0].size(1)}};
    c.send_inner(0, call(mse_loss_bias_grad_op, given, {.reduction = reduction}, shapes));
    return true;
}

}  // namespace mezzo
