#include "insight/device_times.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "kernels/registry.h"
#include "mezzo/error.h"

namespace mezzo::insight {

DeviceTimes::DeviceTimes(Device device, std::function<std::int64_t()> clock)
    : device_(device), clock_(std::move(clock)) {
    (void)backend_of("Profiler", device);  // that is there
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

// That somebody else watches the devices is an error; that the library is missing or refuses is not.
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

// The thread may lose its processor between two readings: the closest of some count.
void DeviceTimes::compare_clocks() {
    std::int64_t closest = std::numeric_limits<std::int64_t>::max();
    for (int i = 0; i < 8; ++i) {
        const std::int64_t before = clock_(), theirs = library_->now(), after = clock_();
        if (after - before >= closest) continue;
        closest = after - before;
        offset_ = before + closest / 2 - theirs;
    }
}

// Events may go on after the last noted step.
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

// Ids of the library begin with 1.
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
