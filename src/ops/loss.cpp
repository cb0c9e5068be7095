// Losses of an input and a target of one shape.
#include "autograd/state.h"
#include "kernels/kernels.h"
#include "ops/loss_common.h"

namespace mezzo {

Tensor finished_loss(const Tensor& loss, const Tensor& input, Dtype natural) {
    const bool scope = autocast_state().enabled[int(input.device().type())];
    return scope && is_16bit(natural) ? loss : cast(loss, natural);
}

Tensor reduced(const Tensor& values, const Attrs& at) {
    if (reduction_of(at) == Reduction::none) return values;
    return reduction_of(at) == Reduction::mean ? mean(values) : sum(values);
}

Tensor spread_loss_grad(const Tensor& g, const Attrs& at, double count) {
    return reduction_of(at) == Reduction::mean ? g / count : g;
}

namespace {

// Per-element values, and their derivatives by the input or the target.
using Slope = Tensor(const Tensor& x, const Tensor& t, const Attrs& at);
using Value = Slope;

Tensor mse_value(const Tensor& x, const Tensor& t, const Attrs&) { return square(x - t); }
Tensor mse_slope(const Tensor& x, const Tensor& t, const Attrs&) { return 2.0 * (x - t); }

Tensor l1_value(const Tensor& x, const Tensor& t, const Attrs&) { return abs(x - t); }
Tensor l1_slope(const Tensor& x, const Tensor& t, const Attrs&) { return sign(x - t); }

// d^2 / (2 beta) inside |d| < beta, |d| - beta / 2 outside. With c = clamp(d, -beta, beta) both are c (d - c
// / 2) / beta.
Tensor smooth_l1_value(const Tensor& x, const Tensor& t, const Attrs& at) {
    const Tensor d = x - t, c = clamp(d, -at.alpha, at.alpha);
    return c * (d - 0.5 * c) / at.alpha;
}
Tensor smooth_l1_slope(const Tensor& x, const Tensor& t, const Attrs& at) {
    return clamp(x - t, -at.alpha, at.alpha) / at.alpha;
}

Tensor clamped_log(const Tensor& x) { return clamp(log(x), -100, 3.4e38); }

Tensor bce_value(const Tensor& x, const Tensor& t, const Attrs&) {
    return -(t * clamped_log(x) + (1.0 - t) * clamped_log(1.0 - x));
}
// (x - t) / (x (1 - x)), with the denominator at least 1e-12 so that 0 and 1 give finite gradients.
Tensor bce_slope(const Tensor& x, const Tensor& t, const Attrs&) {
    return (x - t) / clamp(x * (1.0 - x), 1e-12, 1);
}

// softplus(x) - x t, where x is large without a difference of large numbers.
Tensor bce_with_logits_value(const Tensor& x, const Tensor& t, const Attrs&) {
    return (1.0 - t) * x + softplus(-x);
}
Tensor bce_with_logits_slope(const Tensor& x, const Tensor& t, const Attrs&) { return sigmoid(x) - t; }

Tensor bce_target_slope(const Tensor& x, const Tensor&, const Attrs&) {
    return clamped_log(1.0 - x) - clamped_log(x);
}
Tensor bce_with_logits_target_slope(const Tensor& x, const Tensor&, const Attrs&) { return -x; }

template <Value value> Tensors loss_decomposition(In in, const Attrs& at) {
    return {as_asked(reduced(value(widened(in[0]), widened(in[1]), at), at), at)};
}

template <Slope slope> Tensors grad_decomposition(In in, const Attrs& at) {
    const Tensor x = widened(in[1]), t = widened(in[2]);
    const Tensor g = spread_loss_grad(widened(in[0]), at, double(x.numel()));
    return {as_asked(g * slope(x, t, at), at)};
}

// The gradient by the input from the fused kernel, in `dtype`.
Tensor input_grad(const Op& op, const Node& c, const Tensor& g, Dtype dtype) {
    Attrs at = c.at;
    at.dtype = dtype;
    at.has_dtype = true;
    return call(op, {g, c.in(0), c.in(1)}, at, c.inputs[0].shape);
}

// Without a slope by the target, the loss depends on input - target alone and the two gradients are opposite.
Tensors loss_vjp(const Op& grad_op, Slope* by_target, const Node& c, const Tensor& g) {
    Tensors grads(2);
    if (c.needs(0)) grads[0] = input_grad(grad_op, c, g, c.grad_dtype(0));
    if (!c.needs(1)) return grads;
    if (by_target) {
        const Tensor x = widened(c.in(0));
        grads[1] = spread_loss_grad(g, c.at, double(x.numel())) * by_target(x, c.in(1), c.at);
    } else {
        const bool shared = c.needs(0) && c.grad_dtype(0) == c.grad_dtype(1);
        grads[1] = -(shared ? grads[0] : input_grad(grad_op, c, g, c.grad_dtype(1)));
    }
    return grads;
}

// Two rows per loss: the gradient by the input (inputs g, input, target), whose own gradient comes from its
// decomposition, and the loss. Kernels read 16 bit as it is, so that autocast has nothing to convert, and always
// give float32 or float64.
#define MEZZO_LOSS(loss, fused, policy, value, slope, by_target)                               \
    const Op loss##_grad_op{{.name = #loss "_grad",                                            \
                             .result = Result::attr,                                           \
                             .mixed = true,                                                    \
                             .kernel = MEZZO_KERNELS(fused##_grad),                            \
                             .decomposition = grad_decomposition<slope>}};                     \
    const Op loss##_op{                                                                        \
        {.name = #loss,                                                                        \
         .cast = Cast::policy,                                                                 \
         .result = Result::attr,                                                               \
         .mixed = true,                                                                        \
         .kernel = MEZZO_KERNELS(fused),                                                       \
         .vjp = [](const Node& c,                                                              \
                   const Tensors& g) { return loss_vjp(loss##_grad_op, by_target, c, g[0]); }, \
         .decomposition = loss_decomposition<value>}};
MEZZO_LOSS(mse_loss, mse_loss, fp32_out, mse_value, mse_slope, nullptr)
MEZZO_LOSS(l1_loss, l1_loss, fp32_out, l1_value, l1_slope, nullptr)
MEZZO_LOSS(smooth_l1_loss, smooth_l1_loss, fp32_out, smooth_l1_value, smooth_l1_slope, nullptr)
MEZZO_LOSS(binary_cross_entropy, bce, banned, bce_value, bce_slope, bce_target_slope)
MEZZO_LOSS(binary_cross_entropy_with_logits, bce_with_logits, fp32_out, bce_with_logits_value,
           bce_with_logits_slope, bce_with_logits_target_slope)
#undef MEZZO_LOSS

Tensor loss(const Op& op, const Tensor& input, const Tensor& target, Reduction reduction, double alpha = 0) {
    const char* name = op.row().name;
    check_floating(name, input);
    check_floating(name, target, "target");
    check_same_shape(name, input, target);
    const Attrs at{.alpha = alpha,
                   .dtype = loss_dtype(input.dtype(), target.dtype()),
                   .has_dtype = true,
                   .reduction = std::uint8_t(reduction)};
    const Tensor y = call(op, {input, target}, at, reduction == Reduction::none ? input.shape() : Shape{});
    return finished_loss(y, input, promote(input.dtype(), target.dtype()));
}

}  // namespace

Tensor mse_loss(const Tensor& input, const Tensor& target, Reduction reduction) {
    return loss(mse_loss_op, input, target, reduction);
}

Tensor l1_loss(const Tensor& input, const Tensor& target, Reduction reduction) {
    return loss(l1_loss_op, input, target, reduction);
}

Tensor smooth_l1_loss(const Tensor& input, const Tensor& target, SmoothL1Options options) {
    check(options.beta > 0, ErrorKind::value, "smooth_l1_loss: beta ", options.beta,
          " is not > 0; use l1_loss for 0");
    return loss(smooth_l1_loss_op, input, target, options.reduction, options.beta);
}

Tensor binary_cross_entropy(const Tensor& input, const Tensor& target, Reduction reduction) {
    check_floating("binary_cross_entropy", input);
    const bool scope = autocast_state().enabled[int(input.device().type())] && input.dtype() != float64;
    check(!scope || (input.dtype() == float32 && !input->from_cast), ErrorKind::dtype,
          "binary_cross_entropy: the input is ", input.dtype(), input->from_cast ? " cast from 16 bit" : "",
          " inside an Autocast scope, where its gradient can leave the range of 16 bit; use "
          "binary_cross_entropy_with_logits on the values before sigmoid");
    if (!autocast_open()) return loss(binary_cross_entropy_op, input, target, reduction);
    NoAutocast plain;  // the row's policy is `banned`; what passed the check is safe
    return loss(binary_cross_entropy_op, input, target, reduction);
}

Tensor binary_cross_entropy_with_logits(const Tensor& logits, const Tensor& target, Reduction reduction) {
    return loss(binary_cross_entropy_with_logits_op, logits, target, reduction);
}

}  // namespace mezzo
