#include "mezzo/device.h"

#include <charconv>
#include <string_view>

#include "core/backend.h"
#include "core/capture.h"
#include "mezzo/error.h"

namespace mezzo {

extern const Backend cpu_backend;  // src/cpu/backend.cpp
#ifdef MEZZO_HAVE_CUDA
extern const Backend cuda_backend;  // cuda/backend.cpp
#endif

const Backend* backend(DeviceType type) {
    if (type == DeviceType::cpu) return &cpu_backend;
#ifdef MEZZO_HAVE_CUDA
    return &cuda_backend;
#else
    return nullptr;
#endif
}

const char* name(DeviceType type) { return type == DeviceType::cpu ? "cpu" : "cuda"; }

int cuda_device_count() {
    const Backend* cuda = backend(DeviceType::cuda);
    return cuda != nullptr ? cuda->device_count() : 0;
}

Device best_device() { return cuda_device_count() > 0 ? Device(DeviceType::cuda) : cpu_device; }

const Backend& backend_of(const char* op, Device device) {
    const Backend* found = backend(device.type());
    check(found != nullptr, ErrorKind::device, op, ": no device ", device, "; this build has no CUDA");
    const int count = found->device_count();
    check(device.index >= 0 && device.index < count, ErrorKind::device, op, ": no device ", device,
          "; there are ", count, " devices of this type");
    return *found;
}

Device parse_device(const char* text) {
    const std::string_view whole = text != nullptr ? text : "";
    std::string_view rest = whole;
    DeviceType type = DeviceType::cpu;
    int index = 0;
    bool good = true;
    if (rest.starts_with("cuda")) {
        type = DeviceType::cuda;
        rest.remove_prefix(4);
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
          "\" is no device; use cpu, cuda or cuda:<index>");
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
