// Conversion of parameters to arguments of the step kernels.
#include "optim/update.h"

#include "kernels/step_copies.h"

namespace mezzo::optim {

const StepKernels& kernels_of(Device device) {
    const StepKernels* kernels = step_kernels(device.type());
    if (kernels != nullptr) return *kernels;
    check(backend(device.type()) != nullptr, ErrorKind::backend, "optimizer: this build has no backend for ",
          device);
    return copied_step_kernels(device);
}

void bump_version(const Tensor& x) {
    if (x->numel > 0) x->storage->version.fetch_add(1, std::memory_order_relaxed);
}

void bump_gradients(const GradientList& list) {
    for (const TensorImpl* leaf : list.leaves) bump_version(leaf->grad_meta->gradient.read());
}

GradientList gradient_list(const char* op, const Tensors& parameters, PendingFactors scaling) {
    GradientList list;
    for (const Tensor& parameter : parameters) {
        static_cast<void>(parameter.requires_grad());  // throws if the parameter is undefined
        if (parameter->grad_meta != nullptr) parameter->grad_meta->gradient.complete();
    }
    if (scaling == PendingFactors::keep) list.pending_factor = common_pending_factor(parameters);
    list.refs.reserve(parameters.size());
    list.indices.reserve(parameters.size());
    list.leaves.reserve(parameters.size());
    bool first = true;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
        const Tensor& parameter = parameters[i];
        GradientSlot& slot = parameter->grads().gradient;
        const Tensor& gradient = slot.read_for_update(list.pending_factor.get());
        if (!gradient.defined()) continue;
        ++list.with_gradient;
        if (first) list.device = gradient.device();
        first = false;
        check(gradient.device() == list.device && parameter.device() == list.device, ErrorKind::device, op,
              ": parameter ", i, " is on ", parameter.device(), " and its gradient on ", gradient.device(),
              ", others are on ", list.device, "; all must be on one device");
        if (gradient.numel() == 0) continue;
        if (!gradient.is_contiguous()) {
            const Tensor dense = gradient.detach().contiguous();
            slot.put({dense, slot.scale_parts()});  // `gradient` is the slot's own
        }
        ParamRef ref{};
        ref.param = raw(parameter);
        ref.grad = raw(gradient);
        ref.numel = parameter.numel();
        ref.dtype = parameter.dtype();
        ref.grad_dtype = gradient.dtype();
        list.refs.push_back(ref);
        list.indices.push_back(i);
        list.leaves.push_back(parameter.impl());
    }
    return list;
}

}  // namespace mezzo::optim
