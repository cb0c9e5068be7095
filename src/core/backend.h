// Interface of a device type: memory, copies, graphs and optional parts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/internal.h"
#include "core/memory/staging.h"
#include "mezzo/tensor.h"

namespace mezzo {

struct DeviceCollectivesLibrary;  // core/device_collectives.h
struct GemmPlanStore;             // kernels/gemm_plan.h

// The memory and copies of one device type. All calls may throw Error.
struct Backend {
    int (*device_count)();
    const char* (*hardware_name)(int index);
    // 256-byte aligned; null if there is not enough memory.
    void* (*allocate)(int index, std::size_t bytes);
    void (*release)(int index, void* p);
    void (*copy_in)(int index, void* dst, const void* host, std::size_t bytes);   // from host memory
    void (*copy_out)(int index, void* host, const void* src, std::size_t bytes);  // to host memory; waits
    void (*copy)(int index, void* dst, const void* src, std::size_t bytes);       // within the device
    void (*synchronize)(int index);
    // Graphs: work that is captured once and then launched as a whole; null if the device has none. Between
    // begin and end, the work that the calling thread queues is captured instead of run; allocations and
    // copies to and from the host are refused.
    void (*begin_capture)(int index) = nullptr;
    void* (*end_capture)(int index) = nullptr;
    void (*launch_graph)(int index, void* graph) = nullptr;
    void (*destroy_graph)(int index, void* graph) = nullptr;  // does not throw
    // Makes host memory for copies that overlap the device's work (core/memory/staging.h); returns null if
    // there is not enough of it. The pointer is null if the device cannot copy while it works.
    std::unique_ptr<StagingBuffer> (*make_staging)(int index, std::size_t bytes) = nullptr;
    // The reason why there is no device, such as a driver that is too old, or why some GPUs are left out; ""
    // if all devices of the machine can be used. The pointer is null if the backend always has one.
    const char* (*device_absence)() = nullptr;
    // The algorithms chosen for matrix products, which src/io writes to files; null if the backend chooses
    // none.
    const GemmPlanStore* gemm_plans = nullptr;
    // Collective operations between processes; null if there are none on the device's own memory.
    const DeviceCollectivesLibrary* collectives = nullptr;
    // Number of a device in the driver and in other libraries, which also count devices that are left out
    // here, and the reverse: -1 for a device that is left out. Null if there is no difference.
    int (*ordinal_of)(int index) = nullptr;
    int (*index_of)(int ordinal) = nullptr;
};

// The backend of a device type, or null in a process without it (kernels/registry.h).
MEZZO_INTERNAL const Backend* backend(DeviceType type);
// The backend of a device that is there; otherwise throws Error(device) in the name of op.
MEZZO_INTERNAL const Backend& backend_of(const char* op, Device device);

}  // namespace mezzo
