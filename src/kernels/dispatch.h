// Kernel lookup: from an op to its kernel on a device.
#pragma once

#include <atomic>

#include "core/internal.h"
#include "kernels/kernel.h"

namespace mezzo {

// Cache of an op's kernel per device type. Each is looked up in the registry once.
class MEZZO_INTERNAL KernelCache {
public:
    constexpr explicit KernelCache(const KernelId& id) : id_(&id) {}
    KernelCache(const KernelCache&) = delete;
    KernelCache& operator=(const KernelCache&) = delete;

    // The backend's kernel, or null if it has none.
    AnyKernel* on(DeviceType type) const {
        AnyKernel* kernel = found_[int(type)].load(std::memory_order_relaxed);
        if (kernel == nullptr) kernel = look_up(type);
        return kernel != missing ? kernel : nullptr;
    }
    const KernelId& id() const { return *id_; }
    const char* name() const { return id_->name; }

private:
    static void missing(In in, const void* at, Out out);
    AnyKernel* look_up(DeviceType type) const;

    const KernelId* id_;
    mutable std::atomic<AnyKernel*> found_[device_type_count] = {};  // null: not looked up; or `missing`
};

// Throws Error(dtype), in the name of `op`, if one of the tensors has a dtype for storage only.
MEZZO_INTERNAL void check_all_compute(const char* op, In tensors);

// Runs the CPU's kernel on copies of the tensors in host memory, and copies the results back. Throws
// Error(backend), in the name of `op`, if the CPU has no kernel either.
MEZZO_INTERNAL void run_on_cpu(const char* op, const KernelCache& kernels, In in, const void* at, Out out);

// A kernel outside any op, for writes that no graph records: fills, copies into existing tensors, random
// numbers, products added to a gradient. `op` is the name in errors.
template <class A> class MEZZO_HIDDEN KernelOf {
public:
    constexpr explicit KernelOf(const char* op = A::name) : op_(op), kernels_(kernel_id<A>) {}

    // Runs it on the device of `out`, without autocast and without recording. Throws Error(dtype) if it
    // computes and a tensor's dtype is for storage only.
    void operator()(In in, const A& at, Out out) const {
        if constexpr (!takes_any_dtype<A>) {
            check_all_compute(op_, in);
            check_all_compute(op_, out);
        }
        if (AnyKernel* kernel = kernels_.on(out[0].device().type()))
            kernel(in, &at, out);
        else
            run_on_cpu(op_, kernels_, in, &at, out);
    }
    void operator()(In in, const A& at, const Tensor& out) const { (*this)(in, at, Out(&out, 1)); }

private:
    const char* op_;
    KernelCache kernels_;
};

}  // namespace mezzo
