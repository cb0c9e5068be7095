// linear: matrix product, bias and activation as one op, and its gradient.
//
//     z = x W^T + b,  y = activation(z)           linear
//
//     dz = dy * activation'(z)                    activation_gradient
//     dx = dz W                                   input_gradient
//     dW = dz^T x,  db = sum of the rows of dz    parameter_gradients
//
// Fusions: the kernel of dz, or that of dW, also computes db. If this layer is the only use of the linear
// layer before it, the kernel of dx also applies the activation backward of that layer.
#include "ops/gemm/linear.h"

#include "autograd/autocast_state.h"
#include "core/enumerators.h"
#include "core/rows.h"
#include "kernels/dispatch.h"
#include "kernels/linear_weight_grad.h"
#include "kernels/matmul.h"
#include "kernels/self_check.h"
#include "mezzo/cuda.h"
#include "ops/gemm/products.h"
#include "ops/gemm/quantized_weight.h"

namespace mezzo {

namespace {

// activation(x W^T + b), and for both gelus the pre-activation, which their gradients read.
Tensors linear_decomposition(In in, const kernels::Linear& at) {
    Tensor before = matmul(in[0], in[1].t());
    if (in.size() > 2) before = before + in[2];
    const Tensor y = activated(before, at.activation);
    if (at.activation == Activation::gelu || at.activation == Activation::gelu_tanh) return {y, before};
    return {y};
}

Tensor column_sums_of(const Tensor& dz) { return column_sum(dz, dz.dtype() == float64 ? float64 : float32); }

// dy, saved, ReLU mask -> dz, and its column sums. Kernels may read the mask instead of relu's result.
const Op<kernels::ActivationGrad> activation_grad_op{{.name = "activation_grad", .first_float32_result = 1},
                                                     nullptr,
                                                     [](In in, const kernels::ActivationGrad& at) -> Tensors {
                                                         const Tensor dz =
                                                             through_activation(at.activation, in[0], in[1]);
                                                         return {dz, column_sums_of(dz)};
                                                     }};

// dz, W, and the saved tensor and ReLU mask of the layer below -> dz of the layer below, and its column
// sums if they are requested.
const Op<kernels::LinearInputGrad> linear_input_grad_op{
    {.name = "linear_input_grad", .first_float32_result = 1},
    nullptr,
    [](In in, const kernels::LinearInputGrad& at) -> Tensors {
        const Tensor dz = through_activation(at.activation, matmul(in[0], in[1]), in[2]);
        if (!at.column_sums) return {dz};
        return {dz, column_sums_of(dz)};
    }};

// dz, x -> dW, db
const Op<kernels::LinearWeightGrad> linear_weight_grad_op{
    {}, nullptr, [](In in, const kernels::LinearWeightGrad&) -> Tensors {
        return {matmul(in[0].t(), in[1]), column_sum(in[0], in[0].dtype())};
    }};
const KernelOf<kernels::LinearWeightGrad> linear_weight_grad_kernel;

// The gradient of the pre-activation, and its column sums if a kernel has computed them with it.
struct ActivationGradient {
    Tensor dz, sums = {};
};

Activation activation_of(const Node& node) { return node.attributes.as<kernels::Linear>().activation; }

bool needs_bias(const Node& node) { return node.inputs.size() > 2 && node.needs(2); }

Tensor saved_by_activation(const Node& node) {
    return matrix_of(node.out(activation_of(node) == Activation::relu ? 0 : 1));
}

Tensor relu_mask(const Node& node) {
    return activation_of(node) == Activation::relu && node.outputs.size() > 1 ? node.saved_outputs[1]
                                                                              : Tensor();
}

// dz from the gradients of the results. gelu's second result has a gradient in derivatives of higher order
// only.
ActivationGradient from_results(const Node& node, const Tensors& grads) {
    const Activation activation = activation_of(node);
    const Tensor dy = grads[0].defined() ? matrix_of(grads[0]) : Tensor();
    if (activation == Activation::none) return {dy};
    const bool has_other = activation != Activation::relu && grads[1].defined();
    const Tensor other = has_other ? matrix_of(grads[1]) : Tensor();
    if (!dy.defined()) return {other};
    if (!has_other && needs_bias(node) && fuses_bias_gradients(dy.device(), dy.dtype())) {
        const Shape shapes[] = {dy.shape(), {dy.size(1)}};
        const Tensor given[] = {dy, saved_by_activation(node), relu_mask(node)};
        const Tensors both = call(activation_grad_op, given, {.activation = activation}, shapes);
        return {both[0], both[1]};
    }
    const Tensor through = through_activation(activation, dy, saved_by_activation(node));
    return {has_other ? other + through : through};
}

// dz = dy * activation'(z), unless the op that reads the result has sent dz itself.
ActivationGradient activation_gradient(const Node& node, const Tensors& grads) {
    const std::size_t inner = node.outputs.size();
    if (grads[inner + of_pre_activation].defined())
        return {grads[inner + of_pre_activation], grads[inner + of_bias]};
    ActivationGradient g = from_results(node, grads);
    // Copies it for the products, if needed, before it is transposed: a copy of the transposed matrix would
    // have the batch as its leading dimension.
    g.dz = gemm_ready(g.dz);
    return g;
}

// Whether input 0 is the result of a linear layer to which the gradient of its pre-activation can be sent. A
// recorded backward goes step by step, in ops that have gradients of their own.
bool passes_activation_below(const Node& node, const Tensor& dz) {
    if (grad_enabled() || !fuses_layers(dz.device(), dz.dtype()) || !node.sole_consumer(0)) return false;
    const Node& below = *node.edges[0].node;
    return node.edges[0].output == 0 && below.op->is<kernels::Linear>() &&
           below.op->traits().fused_gradients != 0 && activation_of(below) != Activation::none &&
           below.outputs[0].dtype == dz.dtype();
}

Tensors gradient_below(const Node& node, const Tensor& dz) {
    const Node& below = *node.edges[0].node;
    const Tensor weight = node.in(1);
    // On the CPU the product of the weight's gradient makes the sums: it reads this gradient anyway.
    const bool sums = needs_bias(below) && dz.device().type() != DeviceType::cpu;
    const Shape shapes[] = {{dz.size(0), weight.size(1)}, {weight.size(1)}};
    const Tensor given[] = {dz, weight, saved_by_activation(below), relu_mask(below)};
    return call(linear_input_grad_op, given, {.activation = activation_of(below), .column_sums = sums},
                std::span<const Shape>(shapes, sums ? 2 : 1));
}

// dx = dz W, written to result[0]. If the activation backward of the layer below is applied as well, it
// returns the gradients to send to that layer instead.
Tensors input_gradient(const Node& node, const Tensor& dz, Tensors& result) {
    if (!node.needs(0)) return {};
    if (passes_activation_below(node, dz)) return gradient_below(node, dz);
    const Tensor dx = product_grad(node, 0, dz, node.in(1));
    const Shape& shape = node.inputs[0].shape;
    result[0] = dx.defined() && shape.size() != 2 ? dx.reshape(shape) : dx;
    return {};
}

Tensor bias_gradient(const Node& node, const ActivationGradient& g) {
    const Dtype wanted = node.grad_dtype(2);
    if (!g.sums.defined()) return bias_grad(g.dz, wanted);
    return is_16bit(wanted) ? cast(g.sums, wanted) : g.sums;
}

// dW = dz^T x and db, written to result[1] and result[2], by one kernel if the device has it. A db that is
// there already stays.
void parameter_gradients(const Node& node, const ActivationGradient& g, Tensors& result) {
    const bool bias = needs_bias(node) && !result[2].defined();
    if (node.needs(1) && bias && !g.sums.defined()) {
        const Tensor x = matrix_of(node.in(0));
        if (makes_weight_and_bias_grad(g.dz, x, node.grad_dtype(1), node.grad_dtype(2))) {
            const bool added = g.dz.dtype() != float64;  // to an existing gradient (product_grad())
            const Tensor leaf = added ? node.accumulator(1) : Tensor();
            const Tensor sum = added && !leaf.defined() && node.grad_dtype(1) == float32
                                   ? node.take_accumulated(1, true)
                                   : Tensor();
            const WeightAndBias both = weight_and_bias_grad(g.dz, x, leaf.defined() ? leaf : sum);
            result[1] = sum.defined() ? sum : both.weight;
            result[2] = both.bias;
            return;
        }
    }
    if (node.needs(1)) result[1] = product_grad(node, 1, g.dz.t(), matrix_of(node.in(0)));
    if (bias) result[2] = bias_gradient(node, g);
}

// The gradients of x [..., in], weight and, if there is one, bias. grads: the gradients of the results,
// followed by those of LinearInner, which replace them where they are defined. Two orders decide results: a
// recorded backward computes db first, and dx comes before dW. The order in which nodes are made is the
// order in which the next backward adds gradients.
Tensors linear_vjp(const Node& node, const Tensors& grads) {
    const ActivationGradient g = activation_gradient(node, grads);
    Tensors result(node.inputs.size());
    if (needs_bias(node) && grad_enabled()) result[2] = bias_gradient(node, g);
    const Tensors below = input_gradient(node, g.dz, result);
    parameter_gradients(node, g, result);
    if (!below.empty()) node.send_inner(0, below);
    return result;
}

// Three ops, because the gradients of the activations read different tensors: relu's its result or, with
// cuda::GemmOptions::relu_masks, also the mask of its positive values; gelu's the pre-activation.
const Op<kernels::Linear> linear_op{{.name = "linear",
                                     .cast = CastPolicy::low,
                                     .saves = save_inputs,
                                     .fp8 = true,
                                     .fused_gradients = linear_fused_gradients},
                                    linear_vjp,
                                    linear_decomposition};
const Op<kernels::Linear> linear_relu_op{{.name = "linear_relu",
                                          .cast = CastPolicy::low,
                                          .saves = save_inputs | save_outputs,
                                          .bits_result = 1,
                                          .fp8 = true,
                                          .fused_gradients = linear_fused_gradients},
                                         linear_vjp,
                                         linear_decomposition};
const Op<kernels::Linear> linear_gelu_op{{.name = "linear_gelu",
                                          .cast = CastPolicy::low,
                                          .saves = save_inputs | save_outputs,
                                          .fp8 = true,
                                          .fused_gradients = linear_fused_gradients},
                                         linear_vjp,
                                         linear_decomposition};

const Op<kernels::Linear>& op_for(LinearActivation activation) {
    if (activation == LinearActivation::none) return linear_op;
    return activation == LinearActivation::relu ? linear_relu_op : linear_gelu_op;
}

Activation kernel_activation(LinearActivation activation) {
    static_assert(int(LinearActivation::relu) == int(Activation::relu) &&
                  int(LinearActivation::gelu) == int(Activation::gelu) &&
                  int(LinearActivation::gelu_tanh) == int(Activation::gelu_tanh));
    return Activation(activation);
}

// The shape of the ReLU mask of a result: a row of bytes for each row of the result.
Shape mask_shape(const Shape& result) { return {rows_of(result), relu_mask_bytes(1, result.back())}; }

// If relu_masks is automatic, masks are made only with autotune: without it nothing would read a mask that a
// separate kernel has made.
bool makes_mask(Device device, Dtype dtype) {
    if (device.type() != DeviceType::cuda) return false;
    const cuda::GemmOptions options = cuda::gemm_options();
    if (options.relu_masks == FastPath::off ||
        (options.relu_masks == FastPath::automatic && !options.autotune))
        return false;
    return fuses_layers(device, dtype) &&
           uses_fast_path(options.relu_masks, FastPathId::relu_masks, device, dtype);
}

}  // namespace

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

Tensor through_activation(Activation activation, const Tensor& dy, const Tensor& saved) {
    if (activation == Activation::relu) return relu_grad(dy, saved);
    return activation == Activation::gelu ? gelu_grad(dy, saved) : gelu_tanh_grad(dy, saved);
}

void check_linear(const char* op, const Tensor& x, const Tensor& weight, const Tensor& bias) {
    check_factors(op, x, weight);
    check(weight.dim() == 2, ErrorKind::shape, op, ": weight ", weight.shape(), " is not a matrix [out, in]");
    if (bias.defined()) {
        check_factors(op, bias, weight);
        check(bias.dim() == 1 && bias.size(0) == weight.size(0), ErrorKind::shape, op, ": bias ",
              bias.shape(), " does not fit weight ", weight.shape());
    }
    check(x.dim() > 0 && x.size(-1) == weight.size(1), ErrorKind::shape, op, ": input ", x.shape(),
          " does not fit weight ", weight.shape(), "; the input's last size must be the weight's second");
}

// CUDA only: on the CPU the product of the weight's gradient makes the sums (weight_and_bias_grad).
bool fuses_bias_gradients(Device device, Dtype dtype) {
    if (device.type() != DeviceType::cuda) return false;
    const cuda::GemmOptions options = cuda::gemm_options();
    const bool included =
        options.fuse_bias_gradients == FastPath::automatic && options.fuse_layers == FastPath::on;
    return included || uses_fast_path(options.fuse_bias_gradients, FastPathId::bias_gradients, device, dtype);
}
bool fuses_layers(Device device, Dtype dtype) {
    return device.type() != DeviceType::cuda ||
           uses_fast_path(cuda::gemm_options().fuse_layers, FastPathId::layers, device, dtype);
}

Tensor bias_grad(const Tensor& dz, Dtype wanted) {
    return column_sum(dz, is_16bit(dz.dtype()) && wanted != dz.dtype() ? float32 : dz.dtype());
}

bool makes_weight_and_bias_grad(const Tensor& dz, const Tensor& x, Dtype of_weight, Dtype of_bias) {
    return !grad_enabled() && linear_weight_grad_op.kernel(dz.device().type()) != nullptr && dz.dim() == 2 &&
           x.dim() == 2 && dz.dtype() == x.dtype() && dz.is_contiguous() && x.is_contiguous() &&
           !is_16bit(of_weight) && !is_16bit(of_bias);
}

WeightAndBias weight_and_bias_grad(const Tensor& dz, const Tensor& x, const Tensor& existing) {
    const Dtype dtype = is_16bit(dz.dtype()) ? float32 : dz.dtype();
    if (!existing.defined()) {
        const Shape shapes[] = {{dz.size(1), x.size(1)}, {dz.size(1)}};
        const Tensor given[] = {dz, x};
        const Tensors both = call(linear_weight_grad_op, given, {}, shapes, dtype);
        return {both[0], both[1]};
    }
    const Tensor bias = empty({dz.size(1)}, {.dtype = dtype, .device = dz.device()});
    const Tensor in[] = {dz, x}, out[] = {as_rows(existing), bias};
    linear_weight_grad_kernel(In(in), {.beta = 1}, Out(out));
    existing->storage->version.fetch_add(1, std::memory_order_relaxed);
    return {Tensor(), bias};
}

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias, LinearActivation activation) {
    check_enumerator("linear", "activation", activation, LinearActivation::gelu_tanh);
    if (is_quantized(weight))
        return linear_quantized("linear", x, weight, bias, kernel_activation(activation));
    check_linear("linear", x, weight, bias);
    const amp::Fp8* const fp8 = scope_fp8(x.device());
    if (fp8 != nullptr && !why_not_fp8(*fp8, x, weight))
        return linear_fp8(*fp8, x, {weight}, bias.defined() ? Tensors{bias} : Tensors{},
                          kernel_activation(activation));
    Shape shapes[] = {x.shape(), {}};
    shapes[0].back() = weight.size(0);
    std::size_t results = 1;
    // The second result, which only the gradient reads.
    if (activation != LinearActivation::none && recording(x, weight, bias)) {
        const bool relu = activation == LinearActivation::relu;
        if (!relu || makes_mask(x.device(), autocast_dtype(CastPolicy::low, x)))
            shapes[results++] = relu ? mask_shape(shapes[0]) : shapes[0];
    }
    const Tensor given[] = {x, weight, bias};
    return call(op_for(activation), In(given, bias.defined() ? 3 : 2),
                {.activation = kernel_activation(activation)}, std::span<const Shape>(shapes, results))[0];
}

}  // namespace mezzo
