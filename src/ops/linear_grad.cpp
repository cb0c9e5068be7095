// The gradient of linear. If this layer is the only use of the linear layer before it, the op that computes
// the gradient of this layer's input also applies the activation backward of that layer.
#include "kernels/matmul.h"
#include "ops/linear.h"
#include "ops/products.h"

namespace mezzo {

namespace {

Activation activation_of(const Node& c) { return c.at.as<kernels::Linear>().activation; }

// The activation backward. kept: the saved tensor, which is the result of relu, the input of any other
// activation.
Tensor through_activation(Activation activation, const Tensor& g, const Tensor& kept) {
    if (activation == Activation::relu) return relu_grad(g, kept);
    return activation == Activation::gelu ? gelu_grad(g, kept) : gelu_tanh_grad(g, kept);
}

Tensor sums_of(const Tensor& before) {
    return column_sum(before, before.dtype() == float64 ? float64 : float32);
}

// The gradient of the pre-activation, and its column sums, which are the bias's gradient. Kernels may read a
// ReLU mask (input 2) instead of relu's result (input 1).
const OpOf<kernels::ActivationGrad> activation_grad_op{
    {.name = "activation_grad",
     .statistics = 1,
     .decomposition = [](In in, const kernels::ActivationGrad& at) -> Tensors {
         const Tensor before = through_activation(at.activation, in[0], in[1]);
         return {before, sums_of(before)};
     }}};

// The gradient of the pre-activation of the layer before this one, and its column sums if they are requested.
const OpOf<kernels::LinearInputGrad> linear_input_grad_op{
    {.name = "linear_input_grad",
     .statistics = 1,
     .decomposition = [](In in, const kernels::LinearInputGrad& at) -> Tensors {
         const Tensor before = through_activation(at.activation, matmul(in[0], in[1]), in[2]);
         if (!at.column_sums) return {before};
         return {before, sums_of(before)};
     }}};

// The gradient of a pre-activation, and its column sums if an op has computed them with it.
struct Before {
    Tensor g, sums = {};
};

bool wants_bias(const Node& c) { return c.inputs.size() > 2 && c.needs(2); }

// The result that the gradient of the activation reads.
Tensor kept_by_activation(const Node& c) {
    return matrix_of(c.out(activation_of(c) == Activation::relu ? 0 : 1));
}
Tensor relu_mask(const Node& c) {
    return activation_of(c) == Activation::relu && c.outputs.size() > 1 ? c.saved_outputs[1] : Tensor();
}

// The gradient of this layer's pre-activation, from the gradients of its results. gelu's second result has a
// gradient in derivatives of higher order only.
Before through_own_activation(const Node& c, const Tensors& gs) {
    const Activation activation = activation_of(c);
    const Tensor of_result = gs[0].defined() ? matrix_of(gs[0]) : Tensor();
    if (activation == Activation::none) return {of_result};
    const bool has_other = activation != Activation::relu && gs[1].defined();
    const Tensor other = has_other ? matrix_of(gs[1]) : Tensor();
    if (!of_result.defined()) return {other};
    if (!has_other && wants_bias(c) && fuses_bias_gradients(of_result.device(), of_result.dtype())) {
        const Shape shapes[] = {of_result.shape(), {of_result.size(1)}};
        const Tensor given[] = {of_result, kept_by_activation(c), relu_mask(c)};
        const Tensors both = call(activation_grad_op, given, {.activation = activation}, shapes);
        return {both[0], both[1]};
    }
    const Tensor through = through_activation(activation, of_result, kept_by_activation(c));
    return {has_other ? other + through : through};
}

Before before_activation(const Node& c, const Tensors& gs) {
    const std::size_t inner = c.outputs.size();
    if (gs[inner + of_before_activation].defined())
        return {gs[inner + of_before_activation], gs[inner + of_bias]};
    Before before = through_own_activation(c, gs);
    // Copies it for the products, if needed, before it is transposed: a copy of the transposed matrix would
    // have the batch as its leading dimension.
    before.g = gemm_ready(before.g);
    return before;
}

// Whether input 0 is the result of a linear layer to which the gradient of its pre-activation can be sent. A
// recorded backward goes step by step, in ops that have gradients of their own.
bool passes_activation_below(const Node& c, const Tensor& g) {
    if (grad_enabled() || !fuses_layers(g.device(), g.dtype()) || !c.sole_consumer(0)) return false;
    const Node& below = *c.edges[0].node;
    return c.edges[0].output == 0 && below.row->vjp == c.row->vjp &&
           activation_of(below) != Activation::none && below.outputs[0].dtype == g.dtype();
}

Tensors gradient_below(const Node& c, const Tensor& g) {
    const Node& below = *c.edges[0].node;
    const Tensor weight = c.in(1);
    // On the CPU the product of the weight's gradient makes the sums: it reads this gradient anyway.
    const bool sums = wants_bias(below) && g.device().type() != DeviceType::cpu;
    const Shape shapes[] = {{g.size(0), weight.size(1)}, {weight.size(1)}};
    const Tensor given[] = {g, weight, kept_by_activation(below), relu_mask(below)};
    return call(linear_input_grad_op, given, {.activation = activation_of(below), .column_sums = sums},
                std::span<const Shape>(shapes, sums ? 2 : 1));
}

Tensor x_grad(const Node& c, const Tensor& g) {
    const Tensor grad = product_grad(c, 0, g, c.in(1));
    const Shape& shape = c.inputs[0].shape;
    return grad.defined() && shape.size() != 2 ? grad.reshape(shape) : grad;
}
Tensor weight_grad(const Node& c, const Tensor& g) { return product_grad(c, 1, g.t(), matrix_of(c.in(0))); }
Tensor bias_grad(const Node& c, const Before& before) {
    const Dtype wanted = c.grad_dtype(2), given = before.g.dtype();
    if (!before.sums.defined())
        return column_sum(before.g, is_16bit(given) && wanted != given ? float32 : given);
    return is_16bit(wanted) ? cast(before.sums, wanted) : before.sums;
}

// The gradients of weight and bias, by one kernel where the device has it.
void parameter_grads(const Node& c, const Before& before, Tensors& grads) {
    const bool bias = wants_bias(c) && !grads[2].defined();
    if (c.needs(1) && bias && !before.sums.defined()) {
        const Tensor x = matrix_of(c.in(0));
        if (makes_weight_and_bias_grad(before.g, x, c.grad_dtype(1), c.grad_dtype(2))) {
            const bool added = before.g.dtype() != float64;  // to an existing gradient (product_grad())
            const Tensor leaf = added ? c.accumulator(1) : Tensor();
            const Tensor waiting =
                added && !leaf.defined() && c.grad_dtype(1) == float32 ? c.take_waiting(1, true) : Tensor();
            WeightAndBias both = weight_and_bias_grad(before.g, x, leaf.defined() ? leaf : waiting);
            grads[1] = waiting.defined() ? waiting : both.weight;
            grads[2] = both.bias;
            return;
        }
    }
    if (c.needs(1)) grads[1] = weight_grad(c, before.g);
    if (bias) grads[2] = bias_grad(c, before);
}

}  // namespace

Tensors linear_vjp(const Node& c, const Tensors& gs) {
    const Before before = before_activation(c, gs);
    const Tensor& g = before.g;
    Tensors grads(c.inputs.size()), inner;
    // In a recorded backward the bias's gradient is computed first: the order in which nodes are made is the
    // order in which the next backward adds gradients.
    if (wants_bias(c) && grad_enabled()) grads[2] = bias_grad(c, before);
    if (c.needs(0) && passes_activation_below(c, g))
        inner = gradient_below(c, g);
    else if (c.needs(0))
        grads[0] = x_grad(c, g);
    parameter_grads(c, before, grads);
    if (!inner.empty()) c.send_inner(0, inner);
    return grads;
}

}  // namespace mezzo
