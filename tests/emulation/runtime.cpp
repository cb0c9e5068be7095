// cuda/runtime.h over the emulator: linked in place of cuda/runtime.cpp.
#include "cuda/runtime.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>

#include "core/capture.h"
#include "mezzo/error.h"
#include "tests/emulation/engine.h"

namespace mezzo::cuda {
namespace {

using emulation::Engine;
using emulation::Graph;
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

// Where a GPU would refuse a call and spoil the capture.
void require_no_capture(const char* call) {
    check(emulation::recording == nullptr, ErrorKind::backend, "cuda: ", call,
          " failed with cudaErrorStreamCaptureUnsupported");
}

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

void* device_malloc(std::size_t bytes) {
    refuse_in_capture("cuda: device_malloc", "take memory from the system");
    require_no_capture("cudaMalloc");
    return Engine::get().device_malloc(bytes);
}
// A cudaFree in a capture would spoil it, and noexcept makes that a crash here.
void device_free(void* memory) noexcept {
    require_no_capture("cudaFree");
    Engine::get().device_free(memory);
}

void copy_to_device(void* to, const void* from, std::size_t bytes) {
    if (bytes == 0) return;
    refuse_in_capture("cuda: copy_to_device", "copy from the host");
    require_no_capture("cudaMemcpyAsync to the device");
    emulation::tell({nullptr, "copy"});
    Engine::get().device_copy(to, from, bytes);
    ++totals.copies;
}
void copy_to_host(void* to, const void* from, std::size_t bytes) {
    if (bytes == 0) return;
    refuse_in_capture("cuda: copy_to_host", "copy to the host");
    require_no_capture("cudaMemcpyAsync to the host");
    Engine::get().device_copy(to, from, bytes);
    ++totals.copies;
    ++totals.host_syncs;
}
void copy_on_device(void* to, const void* from, std::size_t bytes) {
    if (bytes == 0) return;
    emulation::run_or_record([=] {
        emulation::tell({nullptr, "copy"});
        Engine::get().device_copy(to, from, bytes);
    });
    ++totals.copies;
}
void fill_zero(void* memory, std::size_t bytes) {
    if (bytes == 0) return;
    emulation::run_or_record([=] {
        emulation::tell({nullptr, "fill"});
        Engine::get().device_fill_zero(memory, bytes);
    });
}

void synchronize() {
    refuse_in_capture("cuda: synchronize", "wait for the device");
    require_no_capture("cudaStreamSynchronize");
    ++totals.host_syncs;
}

void begin_capture() {
    require_no_capture("cudaStreamBeginCapture");
    emulation::recording = new Graph;
}
void* end_capture() {
    check(emulation::recording != nullptr, ErrorKind::backend,
          "cuda: cudaStreamEndCapture without a capture");
    auto graph = std::unique_ptr<Graph>(std::exchange(emulation::recording, nullptr));
    check(graph->defect() == nullptr, ErrorKind::backend, "cuda: cudaStreamEndCapture failed with ",
          graph->defect());
    return graph.release();
}
void launch_graph(void* graph) {
    require_no_capture("cudaGraphLaunch");
    static_cast<const Graph*>(graph)->run(options.branch_order);
    count_launch();
}
void destroy_graph(void* graph) noexcept { delete static_cast<Graph*>(graph); }

void* current_stream() {
    static char streams[2];
    return &streams[current_branch()];
}
int current_branch() { return emulation::branch_of_thread; }
void fork_branch() {
    if (emulation::recording != nullptr) emulation::recording->fork();
}
void enter_branch() {
    if (emulation::recording != nullptr) emulation::recording->enter();
    emulation::branch_of_thread = 1;
}
void join_branch() {
    emulation::branch_of_thread = 0;
    if (emulation::recording != nullptr) emulation::recording->join();
}

bool stream_is_capturing() { return options.capturing || emulation::recording != nullptr; }
Counters counters() { return totals; }

Event::Event() : event_(new double(0)) {}
Event::~Event() { delete static_cast<double*>(event_); }
void Event::record() { time_of(event_) = now(); }
float Event::elapsed_ms(const Event& start) const {
    refuse_in_capture("cuda: elapsed_ms", "wait for the device");
    require_no_capture("cudaEventSynchronize");
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
