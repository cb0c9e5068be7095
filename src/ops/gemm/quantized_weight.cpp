// linear() of 8-bit weights. On devices without a kernel, and in float64, the product reads a
// copy of the weight in the dtype of x.
#include "ops/gemm/quantized_weight.h"

#include "autograd/autocast_state.h"
#include "autograd/extra.h"
#include "core/enumerators.h"
#include "kernels/matmul.h"
#include "mezzo/quantize.h"
#include "ops/gemm/linear.h"
#include "ops/gemm/products.h"

namespace mezzo {

namespace {

// dx = dz W. The activation is an op of its own where a gradient is recorded.
Tensors quantized_linear_vjp(const Node& node, const Tensors& grads) {
    Tensors result(node.inputs.size());
    const Tensor dz = matrix_of(grads[0]);
    if (node.needs(0)) {
        const Tensor weight = cast(scaled_codes(node.in(1), node.in(2)), dz.dtype());
        result[0] = cast(product_as(dz, weight, node.grad_dtype(0)), node.grad_dtype(0))
                        .reshape(node.inputs[0].shape);
    }
    if (node.inputs.size() > 3 && node.needs(3)) result[3] = bias_grad(dz, node.grad_dtype(3));
    return result;
}

Tensors quantized_linear_decomposition(In in, const kernels::QuantizedLinear& at) {
    Tensor y = matmul(in[0], cast(scaled_codes(in[1], in[2]), in[0].dtype()).t());
    if (in.size() > 3) y = y + cast(in[3], y.dtype());
    return {activated(y, at.activation)};
}

const Op<kernels::QuantizedLinear> quantized_linear_op{
    {.cast = CastPolicy::low, .cast_inputs = 1, .mixed = true},
    quantized_linear_vjp,
    quantized_linear_decomposition};

const Tensor& scale_of(const Tensor& weight) { return weight->grad_meta->scale; }

void check_quantized(const char* op, const Tensor& x, const Tensor& weight, const Tensor& bias) {
    check_floating(op, x, "the first operand");
    check(x.device() == weight.device(), ErrorKind::device, op, ": input on ", x.device(), " and weight on ",
          weight.device(), "; move one with to()");
    if (bias.defined()) {
        check_floating(op, bias, "bias");
        check(bias.dim() == 1 && bias.size(0) == weight.size(0), ErrorKind::shape, op, ": bias ",
              bias.shape(), " does not fit weight ", weight.shape());
    }
    check(x.dim() > 0 && x.size(-1) == weight.size(1), ErrorKind::shape, op, ": input ", x.shape(),
          " does not fit weight ", weight.shape(), "; the input's last size must be the weight's second");
}

// Computes x W^T + bias from a copy of the weight in the dtype of x. The gradient makes its own copy, and no
// copy lives until backward.
Tensor product_of_copy(const Tensor& x, const Tensor& weight, const Tensor& bias) {
    Tensor y;
    {
        const NoGrad no_grad;
        y = linear(x, dequantize_weight(weight, x.dtype()), bias);
    }
    if (!recording(x, bias)) return y;
    Tensors inputs{x, weight, scale_of(weight)};
    if (bias.defined()) inputs.push_back(bias);
    const kernels::QuantizedLinear attributes{.activation = Activation::none};
    const Ref<Node> node = record(quantized_linear_op, inputs, AttributesRef(attributes), Out(&y, 1));
    node->saved_inputs = std::move(inputs);
    node->note_versions();
    return y;
}

}  // namespace

Tensor scaled_codes(const Tensor& codes, const Tensor& scale) {
    Shape parts, factors;
    for (int d = 0; d < codes.dim(); ++d) {
        const std::int64_t groups = scale.size(d);
        parts.push_back(groups), factors.push_back(groups);
        if (groups != codes.size(d)) parts.push_back(codes.size(d) / groups), factors.push_back(1);
    }
    const Tensor values = cast(codes, float32).reshape(parts);
    return (values * cast(scale, float32).reshape(factors)).reshape(codes.shape());
}

Tensor linear_quantized(const char* op, const Tensor& x, const Tensor& weight, const Tensor& bias,
                        Activation activation) {
    check_quantized(op, x, weight, bias);
    const Dtype dtype = autocast_dtype(CastPolicy::low, x);
    if (dtype == float64 || quantized_linear_op.kernel(x.device().type()) == nullptr) {
        return activated(product_of_copy(cast(x, dtype), weight, bias), activation);
    }
    const bool fused = !recording(x, bias);
    Shape shape = x.shape();
    shape.back() = weight.size(0);
    const Tensor given[] = {x, weight, scale_of(weight), bias};
    const Tensor y =
        call(quantized_linear_op, In(given, bias.defined() ? 4 : 3),
             {.activation = fused ? activation : Activation::none}, std::span<const Shape>(&shape, 1))[0];
    return fused ? y : activated(y, activation);
}

Tensor weight_scale(const Tensor& weight) {
    check(weight.defined(), ErrorKind::value, "weight_scale: the tensor is undefined");
    return is_quantized(weight) ? scale_of(weight) : Tensor();
}

Tensor dequantize_weight(const Tensor& weight, Dtype dtype) {
    check_dtype("dequantize_weight", dtype);
    check(is_quantized(weight), ErrorKind::value,
          "dequantize_weight: the tensor is no 8-bit weight of quantize_weights(): it has no scale");
    const NoGrad no_grad;
    const NoAutocast plain;
    const Tensor x = scaled_codes(weight.detach(), scale_of(weight));
    return cast(x, dtype);
}

}  // namespace mezzo
