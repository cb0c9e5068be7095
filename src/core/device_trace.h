// What a device does, piece by piece, with times: what a backend may tell to profilers.
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
    std::uint64_t id = 0;  // the innermost that the thread which queued it had entered; 0: none
};

// Only one trace runs at a time in a process.
struct DeviceTraceLibrary {
    // Begins to record the work of all devices of the type. Error(backend) with the reason where that cannot be done, and
    // Error(state) while another trace runs.
    void (*start)();
    void (*stop)() noexcept;
    // What the calling thread queues from now on belongs to `id`, which is not 0, until it leaves. Threads leave in reverse
    // order.
    void (*enter)(std::uint64_t id) noexcept;
    void (*leave)() noexcept;
    std::int64_t (*now)();
    // Moves what has been recorded since the last call to the end of `work`, in any order, and returns how many pieces are
    // missing. The devices must have finished. Error(backend) where the library fails.
    std::uint64_t (*take)(std::vector<DeviceWork>& work);
};

}  // namespace mezzo
