#include "mezzo/device.h"

#include <charconv>
#include <string_view>

#include "core/backend.h"
#include "core/step_recorder.h"
#include "mezzo/error.h"

namespace mezzo {

void detail::bad_device_index(int index) {
    mezzo::fail(ErrorKind::value, "Device: index ", index, " is out of range; devices are counted from 0");
}

const char* name(DeviceType type) {
    constexpr const char* names[device_type_count] = {"cpu", "cuda", "custom"};
    return int(type) < device_type_count ? names[int(type)] : "unknown";
}

int cuda_device_count() {
    const Backend* cuda = backend(DeviceType::cuda);
    return cuda != nullptr ? cuda->device_count() : 0;
}

Device best_device() { return cuda_device_count() > 0 ? Device(DeviceType::cuda) : cpu_device; }

const Backend& backend_of(const char* op, Device device) {
    const Backend* found = backend(device.type());
    check(found != nullptr, ErrorKind::device, op, ": no device ", device, "; ",
          device.type() == DeviceType::cuda ? "this build has no CUDA" : "no such backend is registered");
    const int count = found->device_count();
    if (device.index >= 0 && device.index < count) return *found;
    const char* const absence = found->device_absence != nullptr ? found->device_absence() : "";
    if (count == 0 && *absence != 0) fail(ErrorKind::device, op, ": no device ", device, "; ", absence);
    fail(ErrorKind::device, op, ": no device ", device, "; there are ", count, " devices of this type",
         *absence != 0 ? "; " : "", absence);
}

Device parse_device(const char* text) {
    const std::string_view whole = text != nullptr ? text : "";
    std::string_view rest = whole;
    DeviceType type = DeviceType::cpu;
    int index = 0;
    bool good = true;
    for (const DeviceType indexed : {DeviceType::cuda, DeviceType::custom})
        if (rest.starts_with(name(indexed))) type = indexed;
    if (type != DeviceType::cpu) {
        rest.remove_prefix(std::string_view(name(type)).size());
        if (!rest.empty()) {
            const char* end = rest.data() + rest.size();
            const auto [stop, error] = std::from_chars(rest.data() + 1, end, index);
            good = rest[0] == ':' && rest.size() > 1 && rest[1] != '-' && error == std::errc() &&
                   stop == end && index <= 32767;
        }
    } else {
        good = rest == "cpu";
    }
    check(good, ErrorKind::device, "parse_device: \"", whole,
          "\" is no device; use cpu, cuda, cuda:<index>, custom or custom:<index>");
    const Device device(type, index);
    backend_of("parse_device", device);
    return device;
}

const char* hardware_name(Device device) {
    return backend_of("hardware_name", device).hardware_name(device.index);
}

void synchronize(Device device) {
    refuse_in_capture("synchronize", device, "wait for the device");
    backend_of("synchronize", device).synchronize(device.index);
}

}  // namespace mezzo
