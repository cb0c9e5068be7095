// What a device provides, and the form of every kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "core/activation.h"
#include "core/staging.h"
#include "mezzo/tensor.h"

namespace mezzo {

struct GemmPlanStore;  // kernels/gemm_plan.h

// The attributes of an op: one flat struct for all, filled by designated initialisers. An op reads what it
// needs.
struct Attrs {
    Axes axes = {};        // reductions: ascending, non-negative
    Shape shape = {};      // target of views and sum_to
    std::int64_t dim = 0;  // softmax, cat, slice, …: non-negative
    std::int64_t start = 0, step = 1;
    // Scalars: of *_scalar ops; clamp bounds; dropout p; smooth_l1 beta; label smoothing.
    double alpha = 0, beta = 0;
    std::int64_t index = 0;              // ignore_index
    std::uint64_t seed = 0, offset = 0;  // of the Philox stream
    Dtype dtype = float32;
    bool has_dtype = false;  // dtype is the result's dtype
    bool keepdim = false;
    bool trans_a = false, trans_b = false;
    Activation activation = Activation::none;
    std::uint8_t reduction = 0;  // Reduction
};

using In = std::span<const Tensor>;
using Out = std::span<const Tensor>;

// Computes out from in; shapes, dtypes and devices have been checked. Reads no graph, opens no scope.
using Kernel = void(In in, const Attrs& at, Out out);

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

// The backend of a device type, or null in a build without it.
const Backend* backend(DeviceType type);
// The backend of a device that is there; otherwise throws Error(device) in the name of op.
const Backend& backend_of(const char* op, Device device);

}  // namespace mezzo
