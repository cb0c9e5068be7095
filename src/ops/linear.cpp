// linear: matrix product, bias and activation as one op.
#include "ops/linear.h"

#include "core/enumerators.h"
#include "kernels/matmul.h"
#include "kernels/proof.h"
#include "mezzo/cuda.h"
#include "ops/products.h"

namespace mezzo {

namespace {

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

// activation(x W^T + b), and for both gelus the pre-activation, which their gradients read.
Tensors linear_decomposition(In in, const kernels::Linear& at) {
    Tensor before = matmul(in[0], in[1].t());
    if (in.size() > 2) before = before + in[2];
    const Tensor y = activated(before, at.activation);
    if (at.activation == Activation::gelu || at.activation == Activation::gelu_tanh) return {y, before};
    return {y};
}

// Three ops, because the gradients of the activations read different tensors: relu's its result or, with
// cuda::GemmOptions::relu_masks, also the mask of its positive values; gelu's the pre-activation.
const OpOf<kernels::Linear> linear_op{{.name = "linear",
                                       .cast = Cast::low,
                                       .save = save_inputs,
                                       .inner_gradients = linear_inner_gradients,
                                       .vjp = row_function<linear_vjp>,
                                       .decomposition = row_function<linear_decomposition>}};
const OpOf<kernels::Linear> linear_relu_op{{.name = "linear_relu",
                                            .cast = Cast::low,
                                            .save = save_inputs | save_outputs,
                                            .bits = 1,
                                            .inner_gradients = linear_inner_gradients,
                                            .vjp = row_function<linear_vjp>,
                                            .decomposition = row_function<linear_decomposition>}};
const OpOf<kernels::Linear> linear_gelu_op{{.name = "linear_gelu",
                                            .cast = Cast::low,
                                            .save = save_inputs | save_outputs,
                                            .inner_gradients = linear_inner_gradients,
                                            .vjp = row_function<linear_vjp>,
                                            .decomposition = row_function<linear_decomposition>}};

const OpOf<kernels::Linear>& row_for(LinearActivation activation) {
    if (activation == LinearActivation::none) return linear_op;
    return activation == LinearActivation::relu ? linear_relu_op : linear_gelu_op;
}

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

// The shape of the ReLU mask of a result: a row of bytes for each row of the result.
Shape mask_shape(const Shape& result) {
    std::int64_t rows = 1;
    for (int d = 0; d + 1 < result.size(); ++d) rows *= result[d];
    return {rows, relu_mask_bytes(1, result.back())};
}

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

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias, LinearActivation activation) {
    check_linear("linear", x, weight, bias);
    check_enumerator("linear", "activation", activation, LinearActivation::gelu_tanh);
    Shape shapes[] = {x.shape(), {}};
    shapes[0].back() = weight.size(0);
    std::size_t results = 1;
    // The second result, which only the gradient reads.
    if (activation != LinearActivation::none && recording(x, weight, bias)) {
        const bool relu = activation == LinearActivation::relu;
        if (!relu || makes_mask(x.device(), autocast_dtype(Cast::low, x)))
            shapes[results++] = relu ? mask_shape(shapes[0]) : shapes[0];
    }
    const Tensor given[] = {x, weight, bias};
    return call(row_for(activation), In(given, bias.defined() ? 3 : 2),
                {.activation = kernel_activation(activation)}, std::span<const Shape>(shapes, results))[0];
}

}  // namespace mezzo
