// Interface of a backend's trace of device work (kernels, copies, fills) with times, for profilers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace mezzo {

// A kernel, a copy or a fill. Times are in nanoseconds of DeviceTraceLibrary::now().
struct DeviceWork {
    std::string name = {};  // of a kernel; "copy to the device", "copy to the host", "copy", "fill"
    int device = 0, stream = 0;
    std::int64_t begin = 0, end = 0;
    std::uint64_t id = 0;  // innermost id that the queueing thread had entered; 0: none
};

// Only one trace runs at a time in a process.
struct DeviceTraceLibrary {
    // Begins to record the work of all devices of the type. Throws Error(backend) with the reason if that
    // cannot be done, and Error(state) while another trace runs.
    void (*start)();
    void (*stop)() noexcept;
    // Work that the calling thread queues from now on gets `id`, which is not 0, until leave(). Calls of
    // enter() and leave() nest.
    void (*enter)(std::uint64_t id) noexcept;
    void (*leave)() noexcept;
    std::int64_t (*now)();
    // Appends the records since the last call to `work`, in any order, and returns how many were lost. The
    // devices must have finished. Throws Error(backend) if the library fails.
    std::uint64_t (*take)(std::vector<DeviceWork>& work);
};

}  // namespace mezzo
