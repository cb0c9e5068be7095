// Records the work of a device for a Profiler: kernels, copies and fills, with their times.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/device_trace.h"
#include "mezzo/insight/profiler.h"

namespace mezzo::insight {

class DeviceTimes {
public:
    // Starts recording. `device` is not the CPU; `clock` is that of the profiler's events, in nanoseconds.
    // Throws Error(state) if another object already traces the devices. If they cannot be traced absence()
    // says why, and the other calls do nothing.
    DeviceTimes(Device device, std::function<std::int64_t()> clock);
    ~DeviceTimes();
    DeviceTimes(const DeviceTimes&) = delete;
    DeviceTimes& operator=(const DeviceTimes&) = delete;

    // Starts or stops recording. Stopping waits for the devices.
    void note(bool wanted);
    // Work that this thread submits between enter() and leave() belongs to the event.
    void enter(int event) noexcept;
    void leave() noexcept;

    const std::string& absence() const { return absence_; }
    // Returns the recorded work in the order of its beginning. Waits for the devices while recording.
    const std::vector<ProfiledDeviceWork>& work();
    std::uint64_t lost() const { return lost_; }

private:
    void begin();
    void compare_clocks();
    void end() noexcept;
    void take();

    const Device device_;
    const std::function<std::int64_t()> clock_;
    const DeviceTraceLibrary* library_ = nullptr;
    std::string absence_;
    bool running_ = false;
    int entered_ = 0;          // open events whose work is recorded
    std::int64_t offset_ = 0;  // of the profiler's clock relative to the library's
    std::uint64_t lost_ = 0;
    std::vector<ProfiledDeviceWork> work_;
};

}  // namespace mezzo::insight
