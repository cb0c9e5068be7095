// Direct calls of a backend's kernels, which are found by the type of their attributes.
#pragma once

#include <catch2/catch.hpp>

#include "kernels/attention.h"
#include "kernels/copy.h"
#include "kernels/elementwise.h"
#include "kernels/index.h"
#include "kernels/loss.h"
#include "kernels/matmul.h"
#include "kernels/norm.h"
#include "kernels/random.h"
#include "kernels/reduce.h"
#include "kernels/registry.h"
#include "kernels/softmax.h"

namespace mezzo::test {

template <class A> void kernel_on(DeviceType type, In in, const A& at, Out out) {
    AnyKernel* const kernel = find_kernel(kernel_id<A>, type);
    CAPTURE(A::name);
    REQUIRE(kernel != nullptr);
    kernel(in, &at, out);
}

// cpu_kernel<kernels::Sum> is a Kernel<kernels::Sum>.
template <class A> void cpu_kernel(In in, const A& at, Out out) { kernel_on(DeviceType::cpu, in, at, out); }
template <class A> void cuda_kernel(In in, const A& at, Out out) { kernel_on(DeviceType::cuda, in, at, out); }

// Values of a kernel's only result.
template <class A> std::vector<double> run(Kernel<A>* kernel, const std::vector<Tensor>& in,
                                           const std::type_identity_t<A>& at, const Shape& shape,
                                           Dtype dtype) {
    const Tensor y = empty(shape, {.dtype = dtype});
    kernel(in, at, {&y, 1});
    return y.to_vector<double>();
}

}  // namespace mezzo::test
