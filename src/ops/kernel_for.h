// Picks the kernel of a device for writes that no graph records: fills, copies into existing tensors, random
// numbers.
#pragma once

#include "kernels/kernels.h"

namespace mezzo {

// The kernels of one name on every device: const Kernels fill{"fill", MEZZO_KERNELS(fill)};
struct Kernels {
    const char* name;
    Kernel* of[device_type_count];

    // Runs the kernel on the device of `out`, with autocast and history out of the picture.
    void operator()(In in, const Attrs& at, const Tensor& out) const {
        Kernel* kernel = of[int(out.device().type())];
        check(kernel != nullptr, ErrorKind::backend, name, ": no kernel for ", out.device(),
              " in this build");
        kernel(in, at, Out(&out, 1));
    }
};

// The kernel of one name for a device: kernel_for(out.device(), "fill", MEZZO_KERNELS(fill)).
inline Kernel* kernel_for(Device device, const char* name, std::initializer_list<Kernel*> kernels) {
    Kernel* kernel = kernels.begin()[int(device.type())];
    check(kernel != nullptr, ErrorKind::backend, name, ": no kernel for ", device, " in this build");
    return kernel;
}

}  // namespace mezzo
