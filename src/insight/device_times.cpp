#include "insight/device_times.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "kernels/registry.h"
#include "mezzo/error.h"

namespace mezzo::insight {

DeviceTimes::DeviceTimes(Device device, std::function<std::int64_t()> clock)
    : device_(device), clock_(std::move(clock)) {
    (void)backend_of("Profiler", device);  // checks that the device exists
    const DeviceTraceLibrary* const library = backend_parts(device.type())->trace;
    if (library == nullptr) {
        absence_ = std::string("nothing tells the times of ") + name(device.type()) + " devices";
        return;
    }
    library_ = library;
    begin();
}

DeviceTimes::~DeviceTimes() {
    if (running_) end();
}

// Starts the trace. If another object already traces the devices that is an error; if the library is missing
// or refuses it is not.
void DeviceTimes::begin() {
    try {
        library_->start();
        running_ = true;
        compare_clocks();
    } catch (const Error& error) {
        if (running_) end();
        library_ = nullptr;
        if (error.kind() == ErrorKind::state) throw;
        absence_ = error.what();
    }
}

// Finds the offset between the clocks. The thread may be preempted between two readings, so the closest of
// eight pairs counts.
void DeviceTimes::compare_clocks() {
    std::int64_t closest = std::numeric_limits<std::int64_t>::max();
    for (int i = 0; i < 8; ++i) {
        const std::int64_t before = clock_(), theirs = library_->now(), after = clock_();
        if (after - before >= closest) continue;
        closest = after - before;
        offset_ = before + closest / 2 - theirs;
    }
}

// Events may still be open after the last recorded step.
void DeviceTimes::end() noexcept {
    for (; entered_ > 0; --entered_) library_->leave();
    library_->stop();
    running_ = false;
}

void DeviceTimes::note(bool wanted) {
    if (library_ == nullptr || wanted == running_) return;
    if (wanted) {
        begin();
        return;
    }
    take();
    end();
}

// The library's ids begin with 1.
void DeviceTimes::enter(int event) noexcept {
    if (!running_) return;
    library_->enter(std::uint64_t(event) + 1);
    ++entered_;
}
void DeviceTimes::leave() noexcept {
    if (entered_ == 0) return;
    library_->leave();
    --entered_;
}

void DeviceTimes::take() {
    synchronize(device_);
    std::vector<DeviceWork> taken;
    lost_ += library_->take(taken);
    for (DeviceWork& one : taken)
        work_.push_back({.name = std::move(one.name),
                         .device = one.device,
                         .stream = one.stream,
                         .begin = one.begin + offset_,
                         .duration = one.end - one.begin,
                         .event = int(one.id) - 1});
    std::stable_sort(work_.begin(), work_.end(),
                     [](const auto& a, const auto& b) { return a.begin < b.begin; });
}

const std::vector<ProfiledDeviceWork>& DeviceTimes::work() {
    if (running_) take();
    return work_;
}

}  // namespace mezzo::insight
