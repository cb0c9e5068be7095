// From parameters to what the step kernels take: raw pointers of the gradients, checked.
#pragma once

#include <vector>

#include "core/tensor_impl.h"
#include "ops/kernels.h"

namespace mezzo::optim {

// The step kernels of a device; throws in a build without them.
const StepKernels& kernels_of(Device device);

// The parameters that have a gradient with elements. Gradients are made contiguous first.
struct GradientList {
    Device device;
    std::vector<ParamRef> refs;        // param, grad, dtypes and numel are filled
    std::vector<std::size_t> indices;  // of refs, in the given list
    Tensors gradients;                 // of refs
    std::size_t with_gradient = 0;     // including those without elements
};
GradientList gradient_list(const char* op, const Tensors& parameters);

// Marks tensors as changed in place by a kernel.
void bump_version(const Tensor& x);
void bump_versions(const Tensors& tensors);

}  // namespace mezzo::optim
