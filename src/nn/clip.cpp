// Gradient clipping over lists of parameters, on the device.
#include <algorithm>
#include <limits>

#include "mezzo/autograd.h"
#include "mezzo/nn.h"
#include "mezzo/ops.h"
#include "mezzo/record_function.h"
#include "optim/update.h"

namespace mezzo::nn {
namespace {

// clip_grad_norm_() of a list with a float64 gradient: norm and factor are float64.
Tensor clip_in_float64(const Tensors& parameters, const optim::GradientList& list, double max_norm) {
    NoGrad plain;
    Tensor squares = zeros({}, {.dtype = float64, .device = list.device});
    for (const std::size_t i : list.indices) {
        const Tensor gradient = parameters[i].grad().to(float64);
        squares = squares + (gradient * gradient).sum();
    }
    const Tensor norm = squares.sqrt();
    const Tensor factor = (max_norm / (norm + 1e-6)).clamp(-std::numeric_limits<double>::infinity(), 1.0);
    for (const std::size_t i : list.indices) {
        Tensor gradient = parameters[i].grad();
        gradient.copy_(gradient.to(float64) * factor);
    }
    return norm;
}

}  // namespace

Tensor clip_grad_norm_(const Tensors& parameters, double max_norm) {
    check(max_norm >= 0, ErrorKind::value, "clip_grad_norm_: max_norm is ", max_norm,
          "; it must not be negative");
    const insight::RecordFunction scope("clip_grad_norm_");
    optim::GradientList list =
        optim::gradient_list("clip_grad_norm_", parameters, optim::PendingFactors::keep);
    if (list.refs.empty()) return zeros({}, {.device = list.device});
    const bool wide = std::any_of(list.refs.begin(), list.refs.end(),
                                  [](const ParamRef& ref) { return ref.grad_dtype == float64; });
    if (list.pending_factor && !wide && list.pending_factor->can_clip(list))
        return list.pending_factor->clip(max_norm);
    if (list.pending_factor)
        list = optim::gradient_list("clip_grad_norm_", parameters, optim::PendingFactors::apply);
    if (wide) return clip_in_float64(parameters, list, max_norm);
    const Tensor norm = empty({}, {.device = list.device});
    const Tensor state = empty({std::int64_t(sizeof(StepState) / sizeof(float))}, {.device = list.device});
    optim::kernels_of(list.device)
        .statistics(list.refs,
                    {.state = static_cast<StepState*>(raw(state)), .norm = static_cast<float*>(raw(norm))});
    const Ref<optim::DeferredFactor> scale(new optim::DeferredFactor(list, state, norm, false));
    scale->clip(max_norm);
    scale->attach(list.leaves);
    return norm;
}

void clip_grad_value_(const Tensors& parameters, double limit) {
    check(limit >= 0, ErrorKind::value, "clip_grad_value_: limit is ", limit, "; it must not be negative");
    const optim::GradientList list =
        optim::gradient_list("clip_grad_value_", parameters, optim::PendingFactors::apply);
    if (list.refs.empty()) return;
    optim::kernels_of(list.device).clip_by_value(list.refs, limit);
    optim::bump_gradients(list);
}

}  // namespace mezzo::nn
