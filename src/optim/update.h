// Conversion of parameters to arguments of the step kernels: raw pointers of the gradients, checked.
#pragma once

#include <cstring>
#include <type_traits>
#include <vector>

#include "core/tensor_impl.h"
#include "kernels/step.h"
#include "optim/deferred_factor.h"

namespace mezzo::optim {

// The step kernels of a device, or the CPU's on copies. Throws Error(backend) in a build without the device.
const StepKernels& kernels_of(Device device);

// Treatment of gradients with a pending factor (optim/deferred_factor.h) when a list of them is made.
enum class PendingFactors : std::uint8_t {
    apply,  // multiplied now
    keep,   // stays pending if all have the same factor, by which the caller then multiplies
};

// The parameters that have a gradient with elements. Gradients are made contiguous first.
struct GradientList {
    Device device;
    std::vector<ParamRef> refs;          // param, grad, dtypes and numel are filled
    std::vector<std::size_t> indices;    // of refs: those in the given list of parameters, plus first_index
    std::vector<TensorImpl*> leaves;     // of refs
    std::size_t with_gradient = 0;       // including those without elements
    Ref<DeferredFactor> pending_factor;  // the pending factor of all, or null
};
GradientList gradient_list(const char* op, const Tensors& parameters, PendingFactors scaling,
                           std::size_t first_index = 0);

// The struct in a state tensor, such as StepState. Waits for the device.
template <class State> State read_struct(const Tensor& memory) {
    static_assert(std::is_trivially_copyable_v<State>);
    State state;
    std::memcpy(&state, memory.to_vector<float>().data(), sizeof state);
    return state;
}

// Marks tensors as changed in place by a kernel.
void bump_version(const Tensor& x);
void bump_gradients(const GradientList& list);

}  // namespace mezzo::optim
