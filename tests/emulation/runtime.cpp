// cuda/runtime.h over the emulator: linked in place of cuda/runtime.cpp.
#include "cuda/runtime.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "mezzo/error.h"
#include "tests/emulation/engine.h"

namespace mezzo::cuda {
namespace {

using emulation::Engine;
using emulation::options;
using Clock = std::chrono::steady_clock;

Counters totals;
thread_local int device_of_thread = 0;

// MEZZO_SCHEDULE=N in the environment sets the order in which the threads of a block run.
[[maybe_unused]] const bool environment_read = [] {
    if (const char* schedule = std::getenv("MEZZO_SCHEDULE"))
        options.schedule = unsigned(std::strtoul(schedule, nullptr, 10));
    return true;
}();

// Milliseconds.
double& time_of(void* event) { return *static_cast<double*>(event); }
double now() {
    if (options.clock_ms >= 0) return options.clock_ms;
    return std::chrono::duration<double, std::milli>(Clock::now().time_since_epoch()).count();
}

}  // namespace

int device_count() { return options.device_count; }

DeviceInfo device_info(int device) {
    check(device >= 0 && device < options.device_count, ErrorKind::backend, "cuda: no device ", device);
    DeviceInfo info{};
    std::snprintf(info.name, sizeof info.name, "%s", options.device_name);
    info.major = 9;
    info.multiprocessors = 1;
    info.total_memory = options.device_memory;
    info.l2_bytes = options.l2_bytes;
    return info;
}

void set_device(int device) {
    check(device >= 0 && device < options.device_count, ErrorKind::backend, "cuda: no device ", device);
    device_of_thread = device;
}
int current_device() { return device_of_thread; }

void* device_malloc(std::size_t bytes) { return Engine::get().device_malloc(bytes); }
void device_free(void* memory) noexcept { Engine::get().device_free(memory); }

void copy_to_device(void* to, const void* from, std::size_t bytes) {
    if (bytes == 0) return;
    Engine::get().device_copy(to, from, bytes);
    ++totals.copies;
}
void copy_to_host(void* to, const void* from, std::size_t bytes) {
    if (bytes == 0) return;
    Engine::get().device_copy(to, from, bytes);
    ++totals.copies;
    ++totals.host_syncs;
}
void copy_on_device(void* to, const void* from, std::size_t bytes) {
    if (bytes == 0) return;
    Engine::get().device_copy(to, from, bytes);
    ++totals.copies;
}
void fill_zero(void* memory, std::size_t bytes) {
    if (bytes != 0) Engine::get().device_fill_zero(memory, bytes);
}

void synchronize() { ++totals.host_syncs; }
void* current_stream() { return nullptr; }
bool stream_is_capturing() { return options.capturing; }
Counters counters() { return totals; }

Event::Event() : event_(new double(0)) {}
Event::~Event() { delete static_cast<double*>(event_); }
void Event::record() { time_of(event_) = now(); }
float Event::elapsed_ms(const Event& start) const {
    ++totals.host_syncs;
    return float(time_of(event_) - time_of(start.event_));
}

void count_launch() {
    ++totals.launches;
    if (options.clock_ms >= 0) options.clock_ms += options.launch_ms;
}
void check_launch() {}
void allow_dynamic_shared(const void*, std::size_t) {}
unsigned grid_limit(unsigned) { return options.grid_limit; }

}  // namespace mezzo::cuda
