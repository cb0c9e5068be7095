// Gradient clipping over lists of parameters, on the device.
#include "mezzo/nn.h"
#include "optim/param_refs.h"

namespace mezzo::nn {

Tensor clip_grad_norm_(const Tensors& parameters, double max_norm) {
    check(max_norm >= 0, ErrorKind::value, "clip_grad_norm_: max_norm is ", max_norm,
          "; it must not be negative");
    const optim::GradientList list = optim::gradient_list("clip_grad_norm_", parameters);
    const Tensor norm = zeros({}, {.device = list.device});
    if (list.refs.empty()) return norm;
    const StepKernels& kernels = optim::kernels_of(list.device);
    kernels.grad_norm(list.refs, static_cast<float*>(raw(norm)));
    kernels.clip_by_norm(list.refs, static_cast<const float*>(raw(norm)), max_norm);
    optim::bump_versions(list.gradients);
    return norm;
}

void clip_grad_value_(const Tensors& parameters, double limit) {
    check(limit >= 0, ErrorKind::value, "clip_grad_value_: limit is ", limit, "; it must not be negative");
    const optim::GradientList list = optim::gradient_list("clip_grad_value_", parameters);
    if (list.refs.empty()) return;
    optim::kernels_of(list.device).clip_by_value(list.refs, limit);
    optim::bump_versions(list.gradients);
}

}  // namespace mezzo::nn
