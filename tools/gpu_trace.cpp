// Implements gpu_trace.h by the profiling interface of the CUDA backend.
#include "tools/gpu_trace.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernels/registry.h"
#include "mezzo/error.h"

namespace {

const mezzo::DeviceTraceLibrary& library() {
    const mezzo::BackendParts* const parts = mezzo::backend_parts(mezzo::DeviceType::cuda);
    mezzo::check(parts != nullptr && parts->trace != nullptr, mezzo::ErrorKind::backend,
                 "gpu trace: built without CUDA");
    return *parts->trace;
}

}  // namespace

void start_gpu_trace() { library().start(); }

std::vector<mezzo::DeviceWork> take_gpu_trace() {
    std::vector<mezzo::DeviceWork> work;
    if (const std::uint64_t lost = library().take(work); lost > 0)
        throw std::runtime_error("gpu trace: CUPTI has lost " + std::to_string(lost) + " records");
    std::stable_sort(work.begin(), work.end(), [](const mezzo::DeviceWork& a, const mezzo::DeviceWork& b) {
        return a.begin < b.begin;
    });
    return work;
}
