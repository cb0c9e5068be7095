// Negative log likelihoods of distributions, in terms of other ops. Under autocast, and for 16 bit, they are
// computed in float32.
#include <cmath>

#include "mezzo/loss_ops.h"
#include "ops/loss/loss_common.h"

namespace mezzo {

namespace {

constexpr double two_pi = 6.283185307179586;

struct GaussianNll {
    static constexpr const char* name = "gaussian_nll_loss";
    bool full = false;
    double eps = 1e-6;
    Reduction reduction = Reduction::mean;
};

const Op<GaussianNll> gaussian_nll_op{
    {.cast = CastPolicy::fp32, .result = ResultDtype::promoted},
    nullptr,
    [](In in, const GaussianNll& at) -> Tensors {
        const Tensor &given = in[2], d = in[0] - in[1];
        // The limit has the gradient of the variance itself.
        const Tensor var = where(lt(given, at.eps), given - given.detach() + at.eps, given);
        const Tensor value = 0.5 * (log(var) + d / var * d);
        return {reduced(at.full ? value + 0.5 * std::log(two_pi) : value, at.reduction)};
    }};

struct PoissonNll {
    static constexpr const char* name = "poisson_nll_loss";
    bool log_input = true, full = false;
    double eps = 1e-8;
    Reduction reduction = Reduction::mean;
};

// Stirling's approximation of log(t!), 0 for t <= 1.
Tensor log_factorial(const Tensor& t) {
    const Tensor small = le(t, 1.0), safe = masked_fill(t, small, 1);
    return masked_fill(safe * log(safe) - safe + 0.5 * log(two_pi * safe), small, 0);
}

const Op<PoissonNll> poisson_nll_op{
    {.cast = CastPolicy::fp32, .result = ResultDtype::promoted},
    nullptr,
    [](In in, const PoissonNll& at) -> Tensors {
        const Tensor &x = in[0], &t = in[1];
        const Tensor value = at.log_input ? exp(x) - t * x : x - t * log(x + at.eps);
        return {reduced(at.full ? value + log_factorial(t) : value, at.reduction)};
    }};

// var in a shape that broadcasts to that of input.
Tensor fitted_variance(const char* op, const Tensor& input, const Tensor& var) {
    check_floating(op, var, "var");
    Shape rows = input.shape();
    if (input.dim() > 0) rows.erase(input.dim() - 1);
    if (input.dim() > 0 && var.shape() == rows) return var.unsqueeze(-1);
    check(broadcast_shapes(op, input.shape(), var.shape()) == input.shape(), ErrorKind::shape, op, ": var ",
          var.shape(), " does not broadcast to input ", input.shape());
    return var;
}

}  // namespace

Tensor gaussian_nll_loss(const Tensor& input, const Tensor& target, const Tensor& given,
                         GaussianNllOptions options) {
    const char* name = "gaussian_nll_loss";
    check_floating(name, input);
    check_floating(name, target, "target");
    check(options.eps > 0, ErrorKind::value, name, ": eps is ", options.eps, "; it must be positive");
    const Tensor var = fitted_variance(name, input, given);
    const bool checked = var.device().type() == DeviceType::cpu && var.numel() > 0;
    check(!checked || !(min(var.detach()).item<double>() < 0), ErrorKind::value, name,
          ": a variance is negative");
    const Shape shape =
        broadcast_shapes(name, var.shape(), broadcast_shapes(name, input.shape(), target.shape()));
    return call(gaussian_nll_op, {input, target, var},
                {.full = options.full, .eps = options.eps, .reduction = options.reduction},
                result_shape(name, shape, options.reduction));
}

Tensor poisson_nll_loss(const Tensor& input, const Tensor& target, PoissonNllOptions options) {
    const char* name = "poisson_nll_loss";
    check_floating(name, input);
    check_defined(name, target);
    const PoissonNll at{.log_input = options.log_input,
                        .full = options.full,
                        .eps = options.eps,
                        .reduction = options.reduction};
    return call(poisson_nll_op, {input, target}, at,
                result_shape(name, broadcast_shapes(name, input.shape(), target.shape()), options.reduction));
}

}  // namespace mezzo
