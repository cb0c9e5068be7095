// The devices' own work under a Profiler.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/device_trace.h"
#include "mezzo/profiler.h"

namespace mezzo::insight {

class DeviceTimes {
public:
    // A device other than the CPU. `clock` is that of the profiler's events, in nanoseconds. Error(state) where the devices are watched already. Where
    // they cannot be watched absence() says why, and nothing else happens.
    DeviceTimes(Device device, std::function<std::int64_t()> clock);
    ~DeviceTimes();
    DeviceTimes(const DeviceTimes&) = delete;
    DeviceTimes& operator=(const DeviceTimes&) = delete;

    // Whether work is noted from now on. To end it waits for the devices.
    void note(bool wanted);
    // What the thread hands over from now on belongs to an event, until it leaves.
    void enter(int event) noexcept;
    void leave() noexcept;

    const std::string& absence() const { return absence_; }
    // What has been noted, in the order in which it began. Waits for the devices while work is noted.
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
    int entered_ = 0;          // events whose work is noted, and that the thread has not left
    std::int64_t offset_ = 0;  // of the profiler's clock to the library's
    std::uint64_t lost_ = 0;
    std::vector<ProfiledDeviceWork> work_;
};

}  // namespace mezzo::insight
