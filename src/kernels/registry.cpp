#include "kernels/registry.h"

#include <atomic>

#include "kernels/step.h"
#include "mezzo/error.h"

namespace mezzo {

extern const BackendParts cpu_parts;  // src/cpu/backend.cpp
#ifdef MEZZO_HAVE_CUDA
extern const BackendParts cuda_parts;  // cuda/backend.cpp
#endif

namespace {

constinit std::atomic<const BackendParts*> registered[device_type_count] = {
    &cpu_parts,
#ifdef MEZZO_HAVE_CUDA
    &cuda_parts,
#endif
};

AnyKernel* find_in(const BackendParts& parts, const KernelId& id) {
    for (const KernelList* list : parts.kernels)
        for (const KernelEntry& entry : *list)
            if (entry.id == &id) return entry.run;
    return nullptr;
}

void check_entry(const BackendParts& parts, const KernelEntry& entry) {
    check(entry.id != nullptr && entry.run != nullptr, ErrorKind::backend,
          "register_backend: an empty entry in a list of kernels; make lists with kernel_list<>");
    check(find_in(parts, *entry.id) == entry.run, ErrorKind::backend, "register_backend: two kernels for ",
          entry.id->name, "; list one");
}

}  // namespace

void register_backend(DeviceType type, const BackendParts& parts) {
    check(parts.memory != nullptr, ErrorKind::backend, "register_backend: ", name(type),
          " without memory; a backend allocates and copies at least");
    for (const KernelList* list : parts.kernels)
        for (const KernelEntry& entry : *list) check_entry(parts, entry);
    check(int(type) < device_type_count, ErrorKind::value, "register_backend: ", int(type),
          " is no DeviceType");
    const BackendParts* none = nullptr;
    check(registered[int(type)].compare_exchange_strong(none, &parts), ErrorKind::backend,
          "register_backend: ", name(type), " has a backend already");
}

const BackendParts* backend_parts(DeviceType type) {
    return int(type) < device_type_count ? registered[int(type)].load(std::memory_order_acquire) : nullptr;
}

const Backend* backend(DeviceType type) {
    const BackendParts* parts = backend_parts(type);
    return parts != nullptr ? parts->memory : nullptr;
}

AnyKernel* find_kernel(const KernelId& id, DeviceType type) {
    const BackendParts* parts = backend_parts(type);
    return parts != nullptr ? find_in(*parts, id) : nullptr;
}

const StepKernels* step_kernels(DeviceType type) {
    const BackendParts* parts = backend_parts(type);
    return parts != nullptr ? parts->step : nullptr;
}

}  // namespace mezzo
