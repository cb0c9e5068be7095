// Losses of an input and a target of one shape.
#include "kernels/loss.h"
#include "autograd/autocast_state.h"
#include "autograd/op_observer.h"
#include "core/thread_state.h"
#include "mezzo/loss_ops.h"
#include "mezzo/pointwise_ops.h"
#include "ops/loss/loss_common.h"

namespace mezzo {

Tensor finished_loss(const Tensor& loss, const Tensor& input, Dtype natural) {
    const bool scope = thread_state.autocast.enabled[int(input.device().type())];
    return scope && is_16bit(natural) ? loss : cast(loss, natural);
}

Tensor reduced(const Tensor& values, Reduction reduction) {
    if (reduction == Reduction::none) return values;
    return reduction == Reduction::mean ? mean(values) : sum(values);
}

Tensor spread_loss_grad(const Tensor& g, Reduction reduction, double count) {
    return reduction == Reduction::mean ? g / count : g;
}

Tensor weighted(const Tensor& weight, const Tensor& x) {
    return weight * where(logical_and(eq(weight, 0.0), isinf(x)), 0.0, x);
}

namespace {

// Functions of one element: the loss, and its derivative by the input or the target. Only smooth_l1 and huber
// read beta.
using Slope = Tensor(const Tensor& x, const Tensor& t, double beta);
using Value = Slope;

Tensor mse_value(const Tensor& x, const Tensor& t, double) { return square(x - t); }
// Half of the derivative: twice the difference may overflow where the derivative of a mean does not.
Tensor mse_slope(const Tensor& x, const Tensor& t, double) { return x - t; }

Tensor l1_value(const Tensor& x, const Tensor& t, double) { return abs(x - t); }
Tensor l1_slope(const Tensor& x, const Tensor& t, double) { return sign(x - t); }

// d^2 / (2 beta) inside |d| < beta, |d| - beta / 2 outside. With c = clamp(d, -beta, beta) both are c (d - c
// / 2) / beta.
Tensor smooth_l1_value(const Tensor& x, const Tensor& t, double beta) {
    const Tensor d = x - t, c = clamp(d, -beta, beta);
    return c / beta * (d - 0.5 * c);
}
Tensor smooth_l1_slope(const Tensor& x, const Tensor& t, double beta) {
    return clamp(x - t, -beta, beta) / beta;
}

// beta smooth_l1, written so that no beta makes 0 times infinity of it.
Tensor huber_value(const Tensor& x, const Tensor& t, double beta) {
    const Tensor d = x - t, c = clamp(d, -beta, beta);
    return c * (d - 0.5 * c);
}
Tensor huber_slope(const Tensor& x, const Tensor& t, double beta) { return clamp(x - t, -beta, beta); }

Tensor clamped_log(const Tensor& x) { return clamp(log(x), -100, 3.4e38); }

Tensor bce_value(const Tensor& x, const Tensor& t, double) {
    return -(t * clamped_log(x) + (1.0 - t) * clamp(log1p(-x), -100, 3.4e38));
}
// (x - t) / (x (1 - x)), with the denominator at least 1e-12 so that 0 and 1 give finite gradients.
Tensor bce_slope(const Tensor& x, const Tensor& t, double) {
    return (x - t) / clamp(x * (1.0 - x), 1e-12, 1);
}

// softplus(x) - x t, written so that a large x gives no difference of large numbers, and an infinite one with
// a factor of 0 no NaN.
Tensor bce_with_logits_value(const Tensor& x, const Tensor& t, double) {
    return weighted(1.0 - t, softplus(x)) + weighted(t, softplus(-x));
}
Tensor bce_with_logits_slope(const Tensor& x, const Tensor& t, double) {
    return (1.0 - t) * sigmoid(x) - t * sigmoid(-x);
}

Tensor bce_target_slope(const Tensor& x, const Tensor&, double) {
    return clamp(log1p(-x), -100, 3.4e38) - clamped_log(x);
}
Tensor bce_with_logits_target_slope(const Tensor& x, const Tensor&, double) { return -x; }

template <class A, Value value> Tensors loss_decomposition(In in, const A& at) {
    return {reduced(value(in[0], in[1], kernels::beta_of(at)), at.reduction)};
}

template <class A, Slope slope> Tensors grad_decomposition(In in, const A& at) {
    const Tensor x = in[1], t = in[2];
    const Tensor g = spread_loss_grad(in[0], at.reduction, double(x.numel()));
    const Tensor grad = g * slope(x, t, kernels::beta_of(at));
    if constexpr (std::is_same_v<A, kernels::MseLossGrad>) return {2.0 * grad};
    return {grad};
}

// The gradient's attributes are the loss's.
template <class G, class A> G grad_attributes(const A& at) {
    G grad{.reduction = at.reduction};
    if constexpr (requires { at.beta; }) grad.beta = at.beta;
    return grad;
}

// Without a slope by the target, the loss depends on input - target alone and the two gradients are opposite.
template <class G, class A>
Tensors loss_vjp(const Op<G>& grad_op, Slope* by_target, const Node& c, const A& at, const Tensor& g) {
    // From the fused kernel, in `dtype`.
    const auto input_grad = [&](Dtype dtype) {
        return call(grad_op, {g, c.in(0), c.in(1)}, grad_attributes<G>(at), c.inputs[0].shape, dtype);
    };
    Tensors grads(2);
    if constexpr (std::is_same_v<A, kernels::MseLoss>)
        if (send_mse_loss_bias_grad(c, at.reduction, g)) return grads;
    if (c.needs(0)) grads[0] = input_grad(c.grad_dtype(0));
    if (!c.needs(1)) return grads;
    if (by_target) {
        const Tensor x = widened(c.in(0));
        grads[1] = spread_loss_grad(g, at.reduction, double(x.numel())) *
                   by_target(x, c.in(1), kernels::beta_of(at));
    } else {
        const bool shared = c.needs(0) && c.grad_dtype(0) == c.grad_dtype(1);
        grads[1] = -(shared ? grads[0] : input_grad(c.grad_dtype(1)));
    }
    return grads;
}

// Two ops per loss: the gradient by the input (inputs g, input, target), whose own gradient comes from its
// decomposition, and the loss. Kernels read 16-bit inputs as they are, so autocast converts none.
#define MEZZO_LOSS(loss, Attributes, policy, value, slope, by_target)                  \
    const Op<kernels::Attributes##Grad> loss##_grad_op{                                \
        {.result = ResultDtype::requested, .mixed = true},                             \
        nullptr,                                                                       \
        grad_decomposition<kernels::Attributes##Grad, slope>};                         \
    const Op<kernels::Attributes> loss##_op{                                           \
        {.cast = CastPolicy::policy, .result = ResultDtype::requested, .mixed = true}, \
        [](const Node& c, const kernels::Attributes& at, const Tensors& g) {           \
            return loss_vjp(loss##_grad_op, by_target, c, at, g[0]);                   \
        },                                                                             \
        loss_decomposition<kernels::Attributes, value>};
MEZZO_LOSS(mse_loss, MseLoss, fp32_out, mse_value, mse_slope, nullptr)
MEZZO_LOSS(l1_loss, L1Loss, fp32_out, l1_value, l1_slope, nullptr)
MEZZO_LOSS(smooth_l1_loss, SmoothL1Loss, fp32_out, smooth_l1_value, smooth_l1_slope, nullptr)
MEZZO_LOSS(huber_loss, HuberLoss, fp32_out, huber_value, huber_slope, nullptr)
MEZZO_LOSS(binary_cross_entropy, BinaryCrossEntropy, banned, bce_value, bce_slope, bce_target_slope)
MEZZO_LOSS(binary_cross_entropy_with_logits, BinaryCrossEntropyWithLogits, fp32_out, bce_with_logits_value,
           bce_with_logits_slope, bce_with_logits_target_slope)
#undef MEZZO_LOSS

// In the dtype in which losses are computed.
template <class A> Tensor wide_loss(const Op<A>& op, const Tensor& input, const Tensor& target,
                                    const std::type_identity_t<A>& at) {
    const char* name = op.name();
    check_floating(name, input);
    check_floating(name, target, "target");
    check_same_shape(name, input, target);
    check_reduction(name, at.reduction);
    const Shape shape = at.reduction == Reduction::none ? input.shape() : Shape{};
    return call(op, {input, target}, at, shape, loss_dtype(input.dtype(), target.dtype()));
}
template <class A>
Tensor loss(const Op<A>& op, const Tensor& input, const Tensor& target, const std::type_identity_t<A>& at) {
    const Tensor wide = wide_loss(op, input, target, at);  // checks the dtypes before promote() does
    return finished_loss(wide, input, promote(input.dtype(), target.dtype()));
}

// `weight` in the dtype of the values, to whose shape it broadcasts.
Tensor element_weight(const char* name, const char* what, const Tensor& weight, const Tensor& values) {
    check_floating(name, weight, what);
    check(broadcast_shapes(name, values.shape(), weight.shape()) == values.shape(), ErrorKind::shape, name,
          ": ", what, " ", weight.shape(), " does not broadcast to ", values.shape());
    return cast(weight, values.dtype());
}

// The loss per element, a weight for each (undefined: 1), and the reduction.
Tensor weighted_loss(const char* name, const Tensor& values, const Tensor& weight, const Tensor& input,
                     const Tensor& target, Reduction reduction) {
    check_reduction(name, reduction);
    const Tensor all =
        weight.defined() ? weighted(element_weight(name, "weight", weight, values), values) : values;
    return finished_loss(reduced(all, reduction), input, promote(input.dtype(), target.dtype()));
}

Tensor bce(const Tensor& input, const Tensor& target, const BceOptions& options) {
    if (!options.weight.defined())
        return loss(binary_cross_entropy_op, input, target, {.reduction = options.reduction});
    const Tensor values = wide_loss(binary_cross_entropy_op, input, target, {.reduction = Reduction::none});
    return weighted_loss("binary_cross_entropy", values, options.weight, input, target, options.reduction);
}

// bce_with_logits_value() with the part of target multiplied by pos_weight.
Tensor bce_with_pos_weight(const char* name, const Tensor& logits, const Tensor& target,
                           const Tensor& pos_weight) {
    check_floating(name, logits);
    check_floating(name, target, "target");
    check_same_shape(name, logits, target);
    const Dtype dtype = loss_dtype(logits.dtype(), target.dtype());
    const Tensor x = cast(logits, dtype), t = cast(target, dtype);
    const Tensor p = element_weight(name, "pos_weight", pos_weight, x);
    return weighted(1.0 - t, softplus(x)) + weighted(p * t, softplus(-x));
}

}  // namespace

Tensor mse_loss(const Tensor& input, const Tensor& target, LossOptions options) {
    return loss(mse_loss_op, input, target, {.reduction = options.reduction});
}

Tensor l1_loss(const Tensor& input, const Tensor& target, LossOptions options) {
    return loss(l1_loss_op, input, target, {.reduction = options.reduction});
}

Tensor smooth_l1_loss(const Tensor& input, const Tensor& target, SmoothL1Options options) {
    check(options.beta > 0, ErrorKind::value, "smooth_l1_loss: beta ", options.beta,
          " is not > 0; use l1_loss for 0");
    return loss(smooth_l1_loss_op, input, target, {.reduction = options.reduction, .beta = options.beta});
}

Tensor huber_loss(const Tensor& input, const Tensor& target, HuberOptions options) {
    check(options.delta > 0, ErrorKind::value, "huber_loss: delta is ", options.delta,
          "; it must be positive");
    return loss(huber_loss_op, input, target, {.reduction = options.reduction, .beta = options.delta});
}

Tensor binary_cross_entropy(const Tensor& input, const Tensor& target, BceOptions options) {
    check_floating("binary_cross_entropy", input);
    const bool scope = thread_state.autocast.enabled[int(input.device().type())] && input.dtype() != float64;
    check(!scope || (input.dtype() == float32 && !input->from_cast), ErrorKind::dtype,
          "binary_cross_entropy: the input is ", input.dtype(), input->from_cast ? " cast from 16 bit" : "",
          " inside an Autocast scope, where its gradient can leave the range of 16 bit; use "
          "binary_cross_entropy_with_logits on the values before sigmoid");
    if (!thread_state.autocast.open()) return bce(input, target, options);
    NoAutocast plain;  // the row's policy is `banned`; what passed the check is safe
    return bce(input, target, options);
}

Tensor binary_cross_entropy_with_logits(const Tensor& logits, const Tensor& target,
                                        BceWithLogitsOptions options) {
    const char* name = "binary_cross_entropy_with_logits";
    const auto& op = binary_cross_entropy_with_logits_op;
    if (!options.weight.defined() && !options.pos_weight.defined())
        return loss(op, logits, target, {.reduction = options.reduction});
    const CompositeOp here(name);
    const Tensor values = options.pos_weight.defined()
                              ? bce_with_pos_weight(name, logits, target, options.pos_weight)
                              : wide_loss(op, logits, target, {.reduction = Reduction::none});
    return weighted_loss(name, values, options.weight, logits, target, options.reduction);
}

}  // namespace mezzo
