// Gradient clipping over lists of parameters, on the device.
#include "mezzo/nn.h"
#include "optim/param_refs.h"

namespace mezzo::nn {

Tensor clip_grad_norm_(const Tensors& parameters, double max_norm) {
    check(max_norm >= 0, ErrorKind::value, "clip_grad_norm_: max_norm is ", max_norm,
          "; it must not be negative");
    optim::GradientList list = optim::gradient_list("clip_grad_norm_", parameters, optim::Waiting::keep);
    if (list.refs.empty()) return zeros({}, {.device = list.device});
    if (list.deferred && list.deferred->can_clip(list)) return list.deferred->clip(max_norm);
    if (list.deferred) list = optim::gradient_list("clip_grad_norm_", parameters, optim::Waiting::settle);
    const Tensor norm = empty({}, {.device = list.device});
    const Tensor state = empty({std::int64_t(sizeof(StepState) / sizeof(float))}, {.device = list.device});
    optim::kernels_of(list.device)
        .statistics(list.refs,
                    {.state = static_cast<StepState*>(raw(state)), .norm = static_cast<float*>(raw(norm))});
    const Ref<optim::Deferred> deferred(new optim::Deferred(state, norm, false));
    deferred->clip(max_norm);
    optim::defer(deferred, list);
    return norm;
}

void clip_grad_value_(const Tensors& parameters, double limit) {
    check(limit >= 0, ErrorKind::value, "clip_grad_value_: limit is ", limit, "; it must not be negative");
    const optim::GradientList list =
        optim::gradient_list("clip_grad_value_", parameters, optim::Waiting::settle);
    if (list.refs.empty()) return;
    optim::kernels_of(list.device).clip_by_value(list.refs, limit);
    optim::bump_gradients(list);
}

}  // namespace mezzo::nn
