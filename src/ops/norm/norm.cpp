// Normalisation of rows: layer_norm, rms_norm, and dropout_add_layer_norm, which ends each half of a
// Transformer layer.
#include "kernels/norm.h"
#include "ops/elementwise/dropout.h"
#include "ops/gemm/products.h"
#include "ops/norm/norm_common.h"

namespace mezzo {

namespace {

Tensor row_mean(const Tensor& x) { return mean(x, {-1}, keep_dims()); }

// x [.., cols] normalised: less its mean if `centred`, times rstd.
struct Normalised {
    Tensor x, rstd;
};
Normalised normalised(const Tensor& x, double eps, bool centred) {
    const Tensor c = centred ? x - row_mean(x) : x;
    const Tensor rstd = rsqrt(row_mean(c * c) + eps);
    return {c * rstd, rstd};
}

Tensor layer_norm_of(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
    return normalised(x, eps, true).x * weight + bias;
}

// dx plus the accumulated gradient `waiting`, if there is one.
Tensor added(const Tensor& dx, const Tensor& waiting) { return waiting.defined() ? dx + waiting : dx; }

// For y = n(x) w + b: the gradients of x, w and b. The inputs mean and rstd are functions of x. They are not
// read here, so that the derivative of this function by x is complete.
Tensors layer_norm_grad_decomposition(In in, double eps) {
    const Tensor g = in[0], weight = in[2];
    const Normalised n = normalised(in[1], eps, true);
    const Tensor gw = g * weight;
    const Tensor dx = n.rstd * (gw - row_mean(gw) - n.x * row_mean(gw * n.x));
    return {dx, sum(g * n.x, {0}), sum(g, {0})};
}

Tensors rms_norm_grad_decomposition(In in, const kernels::RmsNormGrad& at) {
    const Tensor g = in[0], weight = in[2];
    const Normalised n = normalised(in[1], at.eps, false);
    const Tensor gw = g * weight;
    return {added(n.rstd * (gw - n.x * row_mean(gw * n.x)), in[4]), sum(g * n.x, {0})};
}

const Op<kernels::LayerNormGrad> layer_norm_grad_op{
    {.name = "layer_norm_grad", .mixed = true, .first_float32_result = 1},
    nullptr,
    [](In in, const kernels::LayerNormGrad& at) {
        Tensors grads = layer_norm_grad_decomposition(in, at.eps);
        grads[0] = added(grads[0], in[5]);
        return grads;
    }};
const Op<kernels::RmsNormGrad> rms_norm_grad_op{
    {.name = "rms_norm_grad", .mixed = true, .first_float32_result = 1},
    nullptr,
    rms_norm_grad_decomposition};

// g and x: matrices of rows. waiting: a gradient of x that is added to this one, or undefined.
Tensors layer_norm_grad(const Tensor& g, const Tensor& x, const Tensor& weight, const Tensor& row_mean,
                        const Tensor& rstd, const Tensor& waiting, double eps, Dtype dtype) {
    const Shape shapes[] = {x.shape(), weight.shape(), weight.shape()};
    return call(layer_norm_grad_op, Tensors{g, x, weight, row_mean, rstd, waiting}, {.eps = eps}, shapes,
                dtype);
}

// Accumulated gradient of input 0 (Node::take_accumulated) as a matrix of rows, or undefined. The kernel adds
// it to its own.
Tensor accumulated_rows(const Node& c) {
    const Tensor waiting = c.take_accumulated(0, false);
    return waiting.defined() ? matrix_of(waiting) : waiting;
}

// The gradients of a normalisation, the first of them in the shape of input 0.
Tensors in_shape(Tensors grads, const Node& c) {
    grads[0] = grads[0].reshape(c.inputs[0].shape);
    return grads;
}

const Op<kernels::LayerNorm> layer_norm_op{
    {.name = "layer_norm",
     .cast = CastPolicy::fp32_out,
     .saves = save_inputs | save_statistics,
     .mixed = true,
     .writes_copy16 = true,
     .first_float32_result = 1},
    [](const Node& c, const kernels::LayerNorm& at, const Tensors& g) -> Tensors {
        return in_shape(layer_norm_grad(matrix_of(g[0]), matrix_of(c.in(0)), c.in(1), c.out(1), c.out(2),
                                        accumulated_rows(c), at.eps, c.grad_dtype(0)),
                        c);
    },
    [](In in, const kernels::LayerNorm& at) -> Tensors {
        return {layer_norm_of(in[0], in[1], in[2], at.eps)};
    }};

const Op<kernels::RmsNorm> rms_norm_op{
    {.name = "rms_norm",
     .cast = CastPolicy::fp32_out,
     .saves = save_inputs | save_statistics,
     .mixed = true,
     .writes_copy16 = true,
     .first_float32_result = 1},
    [](const Node& c, const kernels::RmsNorm& at, const Tensors& g) -> Tensors {
        const Tensor x = matrix_of(c.in(0));
        const Shape shapes[] = {x.shape(), c.inputs[1].shape};
        return in_shape(
            call(rms_norm_grad_op, Tensors{matrix_of(g[0]), x, c.in(1), c.out(1), accumulated_rows(c)},
                 {.eps = at.eps}, shapes, c.grad_dtype(0)),
            c);
    },
    [](In in, const kernels::RmsNorm& at) -> Tensors {
        return {normalised(in[0], at.eps, false).x * in[1]};
    }};

// One op instead of layer_norm_grad, dropout and column_sum. It saves two passes over the gradient of z.
const Op<kernels::DropoutAddLayerNormGrad> dropout_add_layer_norm_grad_op{
    {.name = "dropout_add_layer_norm_grad", .mixed = true, .first_float32_result = 1},
    nullptr,
    [](In in, const kernels::DropoutAddLayerNormGrad& at) -> Tensors {
        const Tensors through = layer_norm_grad_decomposition(in, at.forward.eps);
        const Tensor dx = dropout_at(through[0], at.forward.dropout_p, at.forward.stream);
        return {dx, through[0], through[1], through[2], sum(dx, {0})};
    }};

enum DropoutAddLayerNormInput { weight_input, x_input, x_bias_input, residual_input, bias_input };

// dropout(x + x_bias) + residual, in float32 or float64.
Tensor dropped_sum(In in, const kernels::DropoutAddLayerNorm& at) {
    Tensor x = in[x_input];
    if (in[x_bias_input].defined()) x = x + in[x_bias_input];
    return dropout_at(x, at.dropout_p, at.stream) + in[residual_input];
}

// The gradients of x, residual, weight, bias and x_bias (undefined unless of_x_bias) for the gradient g of y.
// g, and the gradients of x and residual: matrices of rows.
Tensors fused_grads(const Node& c, const kernels::DropoutAddLayerNorm& at, const Tensor& g, bool of_x_bias) {
    const Tensor weight = c.in(weight_input), z = matrix_of(c.out(1)), row_mean = c.out(2), rstd = c.out(3);
    const Dtype dtype = c.grad_dtype(x_input);
    const bool wide = z.dtype() == float64;
    if ((at.dropout_p > 0 || dtype != z.dtype()) && wide == (dtype == float64)) {
        const Shape &vector = weight.shape(), shapes[] = {z.shape(), z.shape(), vector, vector, vector};
        Tensors grads = call(dropout_add_layer_norm_grad_op, Tensors{g, z, weight, row_mean, rstd},
                             {.forward = at}, std::span(shapes, of_x_bias ? 5 : 4), dtype);
        grads.resize(5);
        return grads;
    }
    const Tensors through = layer_norm_grad(g, z, weight, row_mean, rstd, {}, at.eps, z.dtype());
    const Tensor dx = dropout_at(through[0], at.dropout_p, at.stream);
    return {cast(dx, dtype), through[0], through[1], through[2],
            of_x_bias ? column_sum(dx, dx.dtype()) : Tensor()};
}

Tensors dropout_add_layer_norm_vjp(const Node& c, const kernels::DropoutAddLayerNorm& at, const Tensors& g) {
    const bool of_x_bias = !c.inputs[x_bias_input].shape.empty() && c.needs(x_bias_input);
    Tensors of(5);  // x, residual, weight, bias, x_bias
    if (g[0].defined()) of = fused_grads(c, at, matrix_of(g[0]), of_x_bias);
    if (g.size() > 1 && g[1].defined()) {  // of z: there is one in derivatives of higher order only
        const Tensor of_z = matrix_of(g[1]), dx = dropout_at(of_z, at.dropout_p, at.stream);
        const auto add = [](Tensor& sum, const Tensor& x) { sum = sum.defined() ? sum + x : x; };
        add(of[0], cast(dx, c.grad_dtype(x_input)));
        add(of[1], of_z);
        if (of_x_bias) add(of[4], column_sum(dx, dx.dtype()));
    }
    for (const int i : {0, 1})
        if (of[i].defined()) of[i] = of[i].reshape(c.inputs[x_input].shape);
    return {of[2], of[0], of[4], of[1], of[3]};
}

// The weight is first because it is the only input that the gradient reads.
const Op<kernels::DropoutAddLayerNorm> dropout_add_layer_norm_op{
    {.name = "dropout_add_layer_norm",
     .cast = CastPolicy::fp32_out,
     .saves = save_first | save_statistics,
     .result = ResultDtype::requested,
     .mixed = true,
     .writes_copy16 = true,
     .first_float32_result = 1},
    dropout_add_layer_norm_vjp,
    [](In in, const kernels::DropoutAddLayerNorm& at) -> Tensors {
        return {layer_norm_of(dropped_sum(in, at), in[weight_input], in[bias_input], at.eps)};
    }};

}  // namespace

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
    check_rows("layer_norm", x);
    check_eps("layer_norm", eps);
    const Tensor w = row_vector("layer_norm", "weight", weight, x, 1),
                 b = row_vector("layer_norm", "bias", bias, x, 0);
    const Shape per_row{rows_of(x.shape())}, shapes[] = {x.shape(), per_row, per_row};
    const std::size_t results = recording(x, w, b) ? 3 : 1;
    return call(layer_norm_op, Tensors{x, w, b}, {.eps = eps}, std::span(shapes, results))[0];
}

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
    check_rows("rms_norm", x);
    check_eps("rms_norm", eps);
    const Tensor w = row_vector("rms_norm", "weight", weight, x, 1);
    const Shape shapes[] = {x.shape(), {rows_of(x.shape())}};
    const std::size_t results = recording(x, w) ? 2 : 1;
    return call(rms_norm_op, Tensors{x, w}, {.eps = eps}, std::span(shapes, results))[0];
}

Tensor dropout_add_layer_norm(const Tensor& x, const Tensor& x_bias, const Tensor& residual,
                              const Tensor& weight, const Tensor& bias,
                              const DropoutAddLayerNormOptions& options) {
    const char* op = "dropout_add_layer_norm";
    check_rows(op, x);
    check_floating(op, residual, "residual");
    check_same_shape(op, x, residual);
    check_eps(op, options.eps);
    check_dropout(op, options.p);
    if (x_bias.defined()) row_vector(op, "x_bias", x_bias, x, 0);
    const Tensor w = row_vector(op, "weight", weight, x, 1), b = row_vector(op, "bias", bias, x, 0);
    kernels::DropoutAddLayerNorm at{.eps = options.eps};
    const Dtype dtype = autocast_takes(w) ? float32 : promote(x.dtype(), residual.dtype());
    const Shape per_row{rows_of(x.shape())}, shapes[] = {x.shape(), x.shape(), per_row, per_row};
    const std::size_t results = recording(x, x_bias, residual, w, b) ? 4 : 1;
    const auto run = [&](const RandomState& stream) {
        at.stream = stream;
        return call(dropout_add_layer_norm_op, Tensors{w, x, x_bias, residual, b}, at,
                    std::span(shapes, results), dtype)[0];
    };
    if (!options.training || options.p == 0) return run({});
    at.dropout_p = options.p;
    return with_dropout_stream(x.numel(), run);
}

}  // namespace mezzo
