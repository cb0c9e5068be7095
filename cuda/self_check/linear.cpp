// Compares the kernels behind the products of linear layers with the kernels of the ops that they replace.
// One of the two problems is read in accesses of 16 bytes, the other one element by element.
#include <vector>

#include "core/tensor_impl.h"
#include "cuda/gemm/gemm.h"
#include "cuda/kernels.h"
#include "cuda/runtime/runtime.h"
#include "cuda/self_check/compare.h"
#include "cuda/self_check/self_checks.h"
#include "kernels/dispatch.h"
#include "kernels/elementwise.h"
#include "kernels/loss.h"
#include "kernels/matmul.h"

namespace mezzo::cuda {
namespace {

constexpr Activation activations[] = {Activation::relu, Activation::gelu, Activation::gelu_tanh};

const KernelOf<kernels::relu_grad> relu_grad;
const KernelOf<kernels::gelu_grad> gelu_grad;
const KernelOf<kernels::gelu_tanh_grad> gelu_tanh_grad;
const KernelOf<kernels::ActivationGrad> activation_grad;
const KernelOf<kernels::MseLossGrad> mse_loss_grad;
const KernelOf<kernels::MseLossBiasGrad> mse_loss_bias_grad;

Dtype sum_type(Dtype dtype) { return dtype == float64 ? float64 : float32; }

// Gradient of a layer's result, the tensor that its activation saved, and the results of the separate ops.
struct Layer {
    Activation activation;
    Tensor g, saved, before, sums;

    Layer(const Shape& shape, Dtype dtype, Activation of)
        : activation(of),
          g(input_of(shape, dtype, 1)),
          saved(input_of(shape, dtype, 2)),
          before(result_of(shape, dtype)),
          sums(result_of({shape[1]}, sum_type(dtype))) {
        const Tensor in[] = {g, saved};
        if (activation == Activation::relu) relu_grad(in, {}, before);
        if (activation == Activation::gelu) gelu_grad(in, {}, before);
        if (activation == Activation::gelu_tanh) gelu_tanh_grad(in, {}, before);
        cuda_kernels::column_sum({&before, 1}, {}, {&sums, 1});
    }
    void require_same(const char* what, const Tensor& fast, const Tensor& fast_sums) const {
        require_close(what, fast, before, 2 * rounding_of(before.dtype()));
        // Sums are in another order, and of gradients that may be rounded the other way.
        require_close(what, fast_sums, sums,
                      64 * rounding_of(sums.dtype()) + 2 * rounding_of(before.dtype()));
    }
    // Checks one kernel, as in the gradient of a layer by its own result.
    void check_kernel(const char* what, const Tensor& mask) const {
        const Tensor out[] = {result_of(g.shape(), g.dtype()), result_of(sums.shape(), sums.dtype())};
        const Tensor in[] = {g, saved, mask};
        activation_grad(in, {.activation = activation}, out);
        require_same(what, out[0], out[1]);
    }
    // Checks one kernel behind the product that has made g.
    void check_behind_product(const char* what, const Tensor& mask) const {
        const Tensor product = copy_of(g), found = result_of(sums.shape(), sums.dtype());
        Gemm gemm = matrix(product);
        gemm.saved = raw(saved);
        gemm.bias_grad = raw(found);
        gemm.mask = mask.defined() ? raw(mask) : nullptr;
        gemm_activation_grad(gemm);
        require_same(what, product, found);
        copy_on_device(raw(product), raw(g), std::size_t(g.numel()) * size_of(g.dtype()));
        gemm.bias_grad = nullptr;
        gemm_activation_grad(gemm);
        require_same(what, product, sums);
    }
    Gemm matrix(const Tensor& x) const {
        Gemm gemm;
        gemm.m = x.size(0), gemm.n = gemm.ldc = x.size(1);
        gemm.c = raw(x), gemm.c_type = x.dtype();
        gemm.activation = activation;
        return gemm;
    }
};

template <class Use>
void each_layer(const SelfCheck& self_check, std::span<const Activation> chosen, const Use& use) {
    for (const Shape& shape : {Shape{151, 72}, Shape{37, 43}})
        for (const Activation activation : chosen) use(Layer(shape, self_check.dtype, activation));
}

// The mask of x, made by the host (kernels/activation.h).
Tensor mask_of(const Tensor& x) {
    const std::int64_t rows = x.size(0), columns = x.size(1), row_bytes = relu_mask_ld(columns) / 8;
    const std::vector<double> values = values_of(x);
    std::vector<unsigned char> bytes(std::size_t(rows * row_bytes));
    for (std::int64_t i = 0; i < x.numel(); ++i)
        if (values[std::size_t(i)] > 0)
            bytes[std::size_t(i / columns * row_bytes + i % columns / 8)] |=
                static_cast<unsigned char>(1u << i % columns % 8);
    const Tensor mask = result_of({rows, row_bytes}, uint8);
    copy_to_device(raw(mask), bytes.data(), bytes.size());
    return mask;
}

// Checks the same sums behind the gradient of a loss.
void check_loss(const Shape& shape, Dtype dtype) {
    const Dtype wide = sum_type(dtype);
    const Tensor input = input_of(shape, dtype, 1), target = input_of(shape, wide, 2),
                 g = input_of({}, wide, 3);
    const Tensor expected = result_of(shape, dtype), sums = result_of({shape[1]}, wide);
    const Tensor of_loss[] = {g, input, target}, in[] = {input, target, g};
    mse_loss_grad(of_loss, {.reduction = Reduction::sum}, expected);
    cuda_kernels::column_sum({&expected, 1}, {}, {&sums, 1});
    const Tensor out[] = {result_of(shape, dtype), result_of({shape[1]}, wide)};
    mse_loss_bias_grad(in, {.reduction = Reduction::sum}, out);
    require_equal("gradient of mse_loss", out[0], expected);
    require_close("sums of the gradient of mse_loss", out[1], sums, 64 * rounding_of(wide));
}

}  // namespace

void check_bias_gradients(const SelfCheck& self_check) {
    each_layer(self_check, activations,
               [](const Layer& layer) { layer.check_kernel("gradients of activation and bias", {}); });
    for (const Shape& shape : {Shape{151, 72}, Shape{37, 43}}) check_loss(shape, self_check.dtype);
}

void check_layers(const SelfCheck& self_check) {
    each_layer(self_check, activations, [](const Layer& layer) {
        layer.check_behind_product("activation's gradient behind a product", {});
    });
}

void check_relu_masks(const SelfCheck& self_check) {
    constexpr Activation relu[] = {Activation::relu};
    each_layer(self_check, relu, [](const Layer& layer) {
        const Tensor expected = mask_of(layer.saved), made = result_of(expected.shape(), uint8);
        Gemm gemm = layer.matrix(layer.saved);
        gemm.mask = raw(made);
        gemm_mask(gemm);
        require_equal("ReLU mask", made, expected);
        layer.check_kernel("gradients of activation and bias from a ReLU mask", made);
        layer.check_behind_product("activation's gradient from a ReLU mask", made);
    });
}

}  // namespace mezzo::cuda
