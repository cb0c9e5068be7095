// What a device provides.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/staging.h"
#include "mezzo/tensor.h"

namespace mezzo {

struct GemmPlanStore;  // kernels/gemm_plan.h

// The memory and copies of one device type. All calls may throw Error.
struct Backend {
    int (*device_count)();
    const char* (*hardware_name)(int index);
    void* (*allocate)(int index,
                      std::size_t bytes);  // null when the memory is not to be had; 256-byte aligned
    void (*release)(int index, void* p);
    void (*copy_in)(int index, void* dst, const void* host, std::size_t bytes);   // from host memory
    void (*copy_out)(int index, void* host, const void* src, std::size_t bytes);  // to host memory; waits
    void (*copy)(int index, void* dst, const void* src, std::size_t bytes);       // within the device
    void (*synchronize)(int index);
    // Work that is captured once and then run as a whole; null where there is no such thing. What this thread
    // asks of the device between begin and end is captured, not run; allocations and copies to and from the
    // host are refused.
    void (*begin_capture)(int index) = nullptr;
    void* (*end_capture)(int index) = nullptr;
    void (*launch_graph)(int index, void* graph) = nullptr;
    void (*destroy_graph)(int index, void* graph) = nullptr;  // does not throw
    // A second branch of this thread's work (core/branch.h); null where there is no such thing. What is asked
    // for between enter and join comes after all before the fork, and runs beside what was asked for between
    // fork and enter. What follows the join comes after both.
    void (*fork_branch)(int index) = nullptr;
    void (*enter_branch)(int index) = nullptr;
    void (*join_branch)(int index) = nullptr;
    // Host memory for copies beside the device's work (core/staging.h), null when it is not to be had; a null
    // entry where there is no such thing.
    std::unique_ptr<StagingBuffer> (*make_staging)(int index, std::size_t bytes) = nullptr;
    // The algorithms chosen for matrix products, which files may keep; null where nothing is chosen.
    const GemmPlanStore* gemm_plans = nullptr;
};

// The backend of a device type, or null in a process without it (kernels/registry.h).
const Backend* backend(DeviceType type);
// The backend of a device that is there; otherwise throws Error(device) in the name of op.
const Backend& backend_of(const char* op, Device device);

}  // namespace mezzo
