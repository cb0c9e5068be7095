// Activations that are made of other element-wise functions.
#include <cmath>

#include "autograd/op_observer.h"
#include "mezzo/pointwise_ops.h"
#include "ops/elementwise/formulas.h"

namespace mezzo {

namespace {

struct Shrink {
    static constexpr const char* name = "hardshrink";
    double lambda = 0.5;
};
struct Celu {
    static constexpr const char* name = "celu";
    double alpha = 1;
};

// The constants for which mean 0 and variance 1 are a fixed point of a layer.
const Op<Formula> selu_op{{.name = "selu"}, nullptr, [](In in) -> Tensors {
                              return {1.0507009873554804934193 * elu(in[0], 1.6732632423543772848170)};
                          }};

// The exponential gets no positive numbers, whose overflow would make the gradient NaN.
const Op<Celu> celu_op{{}, nullptr, [](In in, const Celu& at) -> Tensors {
                           const Tensor positive = gt(in[0], 0.0), low = masked_fill(in[0], positive, 0);
                           return {where(positive, in[0], at.alpha * expm1(low / at.alpha))};
                       }};

Tensor hardsigmoid_of(const Tensor& x) { return clamp(x + 3.0, 0, 6) / 6.0; }
const Op<Formula> hardsigmoid_op{
    {.name = "hardsigmoid"}, nullptr, [](In in) -> Tensors { return {hardsigmoid_of(in[0])}; }};
const Op<Formula> hardswish_op{
    {.name = "hardswish"}, nullptr, [](In in) -> Tensors { return {in[0] * hardsigmoid_of(in[0])}; }};

const Op<Shrink> hardshrink_op{{}, nullptr, [](In in, const Shrink& at) -> Tensors {
                                   return {masked_fill(in[0], le(abs(in[0]), at.lambda), 0)};
                               }};
const Op<Shrink> softshrink_op{{.name = "softshrink"}, nullptr, [](In in, const Shrink& at) -> Tensors {
                                   const Tensor moved = in[0] - clamp(in[0], -at.lambda, at.lambda);
                                   return {masked_fill(moved, le(abs(in[0]), at.lambda), 0)};
                               }};

const Op<Formula> logsigmoid_op{
    {.name = "logsigmoid"}, nullptr, [](In in) -> Tensors { return {-softplus(-in[0])}; }};

// The weight meets no positive x, so that an infinite one adds no NaN to its gradient.
const Op<Formula> prelu_op{{.name = "prelu", .cast = CastPolicy::low, .result = ResultDtype::promoted},
                           nullptr,
                           [](In in) -> Tensors {
                               const Tensor positive = gt(in[0], 0.0);
                               return {where(positive, in[0], in[1] * masked_fill(in[0], positive, 0))};
                           }};

}  // namespace

Tensor selu(const Tensor& x) { return of_real(selu_op, x); }

Tensor celu(const Tensor& x, double alpha) {
    check_floating("celu", x);
    check(alpha > 0, ErrorKind::value, "celu: alpha is ", alpha, "; it must be positive");
    return call(celu_op, {x}, {.alpha = alpha}, x.shape());
}

Tensor relu6(const Tensor& x) {
    const CompositeOp here("relu6");
    return hardtanh(x, 0, 6);
}

Tensor hardsigmoid(const Tensor& x) { return of_real(hardsigmoid_op, x); }
Tensor hardswish(const Tensor& x) { return of_real(hardswish_op, x); }
Tensor hardshrink(const Tensor& x, double lambda) {
    check_floating("hardshrink", x);
    return call(hardshrink_op, {x}, {.lambda = lambda}, x.shape());
}
Tensor softshrink(const Tensor& x, double lambda) {
    check_floating("softshrink", x);
    check(lambda >= 0, ErrorKind::value, "softshrink: lambda is ", lambda, "; it must not be negative");
    return call(softshrink_op, {x}, {.lambda = lambda}, x.shape());
}
Tensor logsigmoid(const Tensor& x) { return of_real(logsigmoid_op, x); }

Tensor prelu(const Tensor& x, const Tensor& weight) {
    check_floating("prelu", x);
    check_floating("prelu", weight, "weight");
    const std::int64_t channels = x.dim() > 0 ? x.size(-1) : 1;
    check(weight.dim() <= 1 && (weight.numel() == 1 || weight.numel() == channels), ErrorKind::shape,
          "prelu: weight ", weight.shape(), " has neither one element nor one for each of the ", channels,
          " channels in the last dimension of ", x.shape());
    const Tensor one = weight.numel() == 1 ? weight.reshape({}) : weight;
    return call(prelu_op, {x, one}, {}, x.shape());
}

Tensor threshold(const Tensor& x, double threshold, double value) {
    const CompositeOp here("threshold");
    check_defined("threshold", x);
    return masked_fill(x, le(x, threshold), value);
}

}  // namespace mezzo
