// linear: matrix product, bias and activation as one op.
#include "core/branch.h"
#include "kernels/kernels.h"
#include "mezzo/cuda.h"
#include "ops/products.h"

namespace mezzo {

Tensor activated(const Tensor& x, Activation activation) {
    switch (activation) {
        case Activation::relu:
            return relu(x);
        case Activation::gelu:
            return gelu(x);
        case Activation::gelu_tanh:
            return gelu_tanh(x);
        case Activation::none:
            break;
    }
    return x;
}

Tensor through_activation(Activation activation, const Tensor& g, const Tensor& kept) {
    if (activation == Activation::relu) return relu_grad(g, kept);
    return activation == Activation::gelu ? gelu_grad(g, kept) : gelu_tanh_grad(g, kept);
}

namespace {

// activation(x W^T + b), and for gelu the value before the activation, which its gradient reads.
Tensors linear_decomposition(In in, const Attrs& at) {
    Tensor before = matmul(in[0], in[1].t());
    if (in.size() > 2) before = before + in[2];
    const Tensor y = activated(before, at.activation);
    if (at.activation == Activation::gelu || at.activation == Activation::gelu_tanh) return {y, before};
    return {y};
}

// What the gradient of the activation reads.
Tensor kept_by_activation(const Node& c) { return c.out(c.at.activation == Activation::relu ? 0 : 1); }

// The gradient of what the activation saw, from those of the results that have one.
Tensor before_activation(const Node& c, const Tensors& g) {
    if (c.at.activation == Activation::none) return g[0];
    Tensor result = g.size() > 1 ? g[1] : Tensor();
    if (g[0].defined()) {
        const Tensor through = through_activation(c.at.activation, g[0], kept_by_activation(c));
        result = result.defined() ? result + through : through;
    }
    return result;
}

// The gradient before the activation and its column sums, the bias's gradient, together.
const Op activation_grad_op{
    {.name = "activation_grad",
     .statistics = 1,
     .kernel = MEZZO_KERNELS(activation_grad),
     .decomposition = [](In in, const Attrs& at) -> Tensors {
         const Tensor before = through_activation(at.activation, in[0], in[1]);
         return {before, column_sum(before, before.dtype() == float64 ? float64 : float32)};
     }}};

}  // namespace

Tensors activation_grad(Activation activation, const Tensor& g, const Tensor& kept) {
    const Shape shapes[] = {g.shape(), {g.size(1)}};
    const Tensor given[] = {g, kept};
    return call(activation_grad_op, given, {.activation = activation}, shapes);
}

namespace {

Tensor x_grad(const Node& c, const Tensor& g) { return product_grad(c, 0, g, c.in(1)); }
Tensor weight_grad(const Node& c, const Tensor& g) { return product_grad(c, 1, g.t(), c.in(0)); }
Tensor bias_grad(const Node& c, const Tensor& g) {
    const Dtype wanted = c.grad_dtype(2);
    return column_sum(g, is_16bit(g.dtype()) && wanted != g.dtype() ? float32 : g.dtype());
}

bool fuses_bias_grad(const Node& c, const Tensors& gs) {
    if (!gs[0].defined() || (gs.size() > 1 && gs[1].defined())) return false;
    return gs[0].device().type() == DeviceType::cuda && cuda::gemm_options().fuse_bias_gradients &&
           c.at.activation != Activation::none && c.inputs.size() > 2 && c.needs(2);
}

Tensors linear_vjp(const Node& c, const Tensors& gs) {
    const bool wants_bias = c.inputs.size() > 2 && c.needs(2);
    Tensor g, of_bias;
    if (fuses_bias_grad(c, gs)) {
        const Tensors both = activation_grad(c.at.activation, gs[0], kept_by_activation(c));
        g = both[0];
        of_bias = is_16bit(c.grad_dtype(2)) ? cast(both[1], c.grad_dtype(2)) : both[1];
    } else {
        // Made ready before it is transposed: rows of outputs, so that the batch is no leading dimension.
        g = gemm_ready(before_activation(c, gs));
        // A recorded gradient keeps its place: the order of nodes is the order of sums in the next backward.
        if (wants_bias && grad_enabled()) of_bias = bias_grad(c, g);
    }
    Tensors grads(c.inputs.size());
    Branch side(g.device(), side_by_side(c));
    if (c.needs(0)) grads[0] = x_grad(c, g);
    side.enter();
    if (c.needs(1)) grads[1] = weight_grad(c, g);
    if (wants_bias) grads[2] = of_bias.defined() ? of_bias : bias_grad(c, g);
    side.join();
    return grads;
}

// Three rows, because the gradient of each activation keeps different things.
const Op linear_op{{.name = "linear",
                    .cast = Cast::low,
                    .save = save_inputs,
                    .kernel = MEZZO_KERNELS(linear),
                    .vjp = linear_vjp,
                    .decomposition = linear_decomposition}};
const Op linear_relu_op{{.name = "linear_relu",
                         .cast = Cast::low,
                         .save = save_inputs | save_outputs,
                         .kernel = MEZZO_KERNELS(linear),
                         .vjp = linear_vjp,
                         .decomposition = linear_decomposition}};
const Op linear_gelu_op{{.name = "linear_gelu",
                         .cast = Cast::low,
                         .save = save_inputs | save_outputs,
                         .kernel = MEZZO_KERNELS(linear),
                         .vjp = linear_vjp,
                         .decomposition = linear_decomposition}};

const Op& row_for(LinearActivation activation) {
    if (activation == LinearActivation::none) return linear_op;
    return activation == LinearActivation::relu ? linear_relu_op : linear_gelu_op;
}

}  // namespace

Activation kernel_activation(LinearActivation activation) {
    switch (activation) {
        case LinearActivation::relu:
            return Activation::relu;
        case LinearActivation::gelu:
            return Activation::gelu;
        case LinearActivation::gelu_tanh:
            return Activation::gelu_tanh;
        case LinearActivation::none:
            break;
    }
    return Activation::none;
}

void check_parameters(const char* op, const Tensor& weight, const Tensor& bias) {
    check(weight.dim() == 2, ErrorKind::shape, op, ": weight ", weight.shape(), " is not a matrix [out, in]");
    if (!bias.defined()) return;
    check_factors(op, bias, weight);
    check(bias.dim() == 1 && bias.size(0) == weight.size(0), ErrorKind::shape, op, ": bias ", bias.shape(),
          " does not fit weight ", weight.shape());
}

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias, LinearActivation activation) {
    check_factors("linear", x, weight);
    check_parameters("linear", weight, bias);
    check(x.dim() > 0 && x.size(-1) == weight.size(1), ErrorKind::shape, "linear: input ", x.shape(),
          " does not fit weight ", weight.shape(), "; the input's last size must be the weight's second");
    const std::int64_t in = weight.size(1), out = weight.size(0);
    std::int64_t rows = 1;
    for (int d = 0; d + 1 < x.dim(); ++d) rows *= x.size(d);
    Tensors given{x.dim() == 2 ? x : x.reshape({rows, in}), weight};
    if (bias.defined()) given.push_back(bias);
    const bool gelu = activation == LinearActivation::gelu || activation == LinearActivation::gelu_tanh;
    const bool recorded = recording(x, weight, bias);
    const Shape shapes[] = {{rows, out}, {rows, out}};
    const Attrs at{.activation = kernel_activation(activation)};
    const Tensor y =
        call(row_for(activation), given, at, std::span<const Shape>(shapes, gelu && recorded ? 2 : 1))[0];
    if (x.dim() == 2) return y;
    Shape shape = x.shape();
    shape.back() = out;
    return y.reshape(shape);
}

}  // namespace mezzo
