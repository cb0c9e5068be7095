// cuda/runtime/runtime.h by the emulator: linked instead of cuda/runtime/runtime.cpp.
#include "cuda/runtime/runtime.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "core/step_recorder.h"
#include "cuda/elementwise/copies.h"
#include "cuda/runtime/capture_owner.h"
#include "cuda/runtime/clear_error.h"
#include "cuda/runtime/device_id.h"
#include "cuda/runtime/devices.h"
#include "mezzo/error.h"
#include "tests/emulation/engine.h"
#include "tests/emulation/streams.h"

namespace mezzo::cuda {
namespace {

using emulation::Engine;
using emulation::Graph;
using emulation::options;
using emulation::Streams;
using Clock = std::chrono::steady_clock;

// Threads work on the device at the same time.
std::mutex counting;
Counters totals;
HostCopies copied;

void count(std::uint64_t& total) {
    const std::lock_guard lock(counting);
    ++total;
}
void count_copy(CopyCount& of, std::size_t bytes) {
    const std::lock_guard lock(counting);
    ++of.count;
    of.bytes += bytes;
    ++totals.copies;
}

thread_local int device_of_thread = 0;

// A whole number in the environment. A typing error must not quietly switch off what a test was to show.
void read_number(const char* name, unsigned& value) {
    const char* const text = std::getenv(name);
    if (text == nullptr) return;
    char* end = nullptr;
    value = unsigned(std::strtoul(text, &end, 10));
    if (end != text && *end == 0) return;
    std::fprintf(stderr, "%s: '%s' is no number\n", name, text);
    std::abort();
}

// Reads options of the emulated device from the environment: MEZZO_SCHEDULE=N the order in which the threads
// of a block run, MEZZO_MULTIPROCESSORS=N the sizes of grids (an H100 has 132), MEZZO_TRUNCATED_SUMS=1 how
// mma.sync adds. Results of self-checks on the emulated device must not be stored with those of the user's
// machine: the cache folder is used only if it is named.
[[maybe_unused]] const bool environment_read = [] {
    setenv("MEZZO_CACHE", "off", 0);
    setenv("MEZZO_NCCL", "off", 0);  // a real NCCL knows nothing of emulated devices, nor does a real CUPTI
    setenv("MEZZO_CUPTI", "off", 0);
    unsigned truncated = 0;
    read_number("MEZZO_SCHEDULE", options.schedule);
    read_number("MEZZO_MULTIPROCESSORS", options.multiprocessors);
    read_number("MEZZO_TRUNCATED_SUMS", truncated);
    if (truncated != 0) options.tensor_sums = emulation::TensorSums::truncated;
    return true;
}();

// For calls that a GPU would refuse during a capture, which would invalidate the capture.
void require_no_capture(const char* call) {
    check(emulation::captured == nullptr, ErrorKind::backend, "cuda: ", call,
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
const char* device_absence() { return options.device_count > 0 ? "" : options.device_absence; }

int ordinal_of(int device) { return device + emulation::left_out; }
int index_of(int ordinal) { return ordinal < emulation::left_out ? -1 : ordinal - emulation::left_out; }

DeviceInfo device_info(int device) {
    check(device >= 0 && device < options.device_count, ErrorKind::backend, "cuda: no device ", device);
    DeviceInfo info{};
    std::snprintf(info.name, sizeof info.name, "%s", options.device_name);
    info.major = options.capability / 10;
    info.minor = options.capability % 10;
    info.multiprocessors = options.multiprocessors != 0 ? int(options.multiprocessors) : 1;
    info.total_memory = options.device_memory;
    info.l2_bytes = options.l2_bytes;
    return info;
}

int kernel_capability(int) { return options.capability; }
int compute_capability(int) { return options.capability; }

std::string device_id(int device) { return "emulated " + std::to_string(device); }

int driver_version() { return emulation::driver_version; }
int runtime_version() { return 13000; }

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
// A cudaFree would invalidate a capture; here the error ends the program, because the function is noexcept.
// Like cudaFree it waits for the device.
void device_free(void* memory) noexcept {
    require_no_capture("cudaFree");
    Streams::get().finish_all();
    Engine::get().device_free(memory);
}

void copy_to_device(void* to, const void* from, std::size_t bytes) {
    if (bytes == 0) return;
    CaptureOwner::require_own(current_device());
    refuse_in_capture("cuda: copy_to_device", "copy from the host");
    require_no_capture("cudaMemcpyAsync to the device");
    const auto* first = static_cast<const char*>(from);
    emulation::run_or_capture([to, values = std::vector<char>(first, first + bytes)] {
        emulation::tell({nullptr, "copy"});
        Engine::get().device_copy(to, values.data(), values.size());
    });
    count_copy(copied.pageable, bytes);
    if (bytes <= pageable_limit) return;
    Streams::get().finish(StreamKind::compute);
    count(totals.host_syncs);
}
void copy_to_host(void* to, const void* from, std::size_t bytes) {
    if (bytes == 0) return;
    CaptureOwner::require_own(current_device());
    refuse_in_capture("cuda: copy_to_host", "copy to the host");
    require_no_capture("cudaMemcpyAsync to the host");
    Streams::get().finish(StreamKind::compute);
    Engine::get().device_copy(to, from, bytes);
    count_copy(copied.to_host, bytes);
    count(totals.host_syncs);
}
void copy_on_device(void* to, const void* from, std::size_t bytes) {
    if (bytes == 0) return;
    CaptureOwner::require_own(current_device());
    emulation::run_or_capture([=] {
        emulation::tell({nullptr, "copy"});
        Engine::get().device_copy(to, from, bytes);
    });
    count(totals.copies);
}
void fill_zero(void* memory, std::size_t bytes) {
    if (bytes == 0) return;
    CaptureOwner::require_own(current_device());
    emulation::run_or_capture([=] {
        emulation::tell({nullptr, "fill"});
        Engine::get().device_fill_zero(memory, bytes);
    });
}

void synchronize() {
    refuse_in_capture("cuda: synchronize", "wait for the device");
    require_no_capture("cudaStreamSynchronize");
    check(!emulation::stuck, ErrorKind::backend,
          "cuda: cudaStreamSynchronize failed with cudaErrorIllegalAddress");
    Streams::get().finish(StreamKind::compute);
    count(totals.host_syncs);
}

void begin_capture() {
    require_no_capture("cudaStreamBeginCapture");
    CaptureOwner::require_own(current_device());
    CaptureOwner::begin(current_device());
    emulation::captured = new Graph;
}
void* end_capture() {
    check(emulation::captured != nullptr, ErrorKind::backend, "cuda: cudaStreamEndCapture without a capture");
    auto graph = std::unique_ptr<Graph>(std::exchange(emulation::captured, nullptr));
    CaptureOwner::end(current_device());
    check(graph->defect() == nullptr, ErrorKind::backend, "cuda: cudaStreamEndCapture failed with ",
          graph->defect());
    return graph.release();
}
void launch_graph(void* graph) {
    require_no_capture("cudaGraphLaunch");
    static_cast<const Graph*>(graph)->run(options.stream_order);
    count_launch();
}
void destroy_graph(void* graph) noexcept { delete static_cast<Graph*>(graph); }

void* current_stream() { return emulation::stream_of(current_device(), emulation::stream_of_thread); }
OnCommunicationStream::OnCommunicationStream() noexcept {
    emulation::stream_of_thread = emulation::communication_stream;
}
OnCommunicationStream::~OnCommunicationStream() { emulation::stream_of_thread = emulation::main_stream; }

bool stream_is_capturing() { return options.capturing || emulation::captured != nullptr; }
Counters counters() {
    const std::lock_guard lock(counting);
    return totals;
}

Event::Event() : event_(new double(0)) {}
Event::~Event() { delete static_cast<double*>(event_); }
void Event::record() { time_of(event_) = now(); }
float Event::elapsed_ms(const Event& start) const {
    refuse_in_capture("cuda: elapsed_ms", "wait for the device");
    require_no_capture("cudaEventSynchronize");
    Streams::get().finish(StreamKind::compute);
    count(totals.host_syncs);
    return float(time_of(event_) - time_of(start.event_));
}

namespace {

// Pinned memory with the number of copies that have yet to read it.
struct Pinned {
    std::mutex mutex;
    std::map<const char*, std::pair<std::size_t, int>> blocks;
    // The block that holds all of [first, first + bytes).
    int& readers(const char* first, std::size_t bytes) {
        const auto after = blocks.upper_bound(first);
        check(after != blocks.begin() &&
                  first + bytes <= std::prev(after)->first + std::prev(after)->second.first,
              ErrorKind::backend, "cuda: cudaMemcpyAsync beside the current stream from pageable memory");
        return std::prev(after)->second.second;
    }
};
Pinned& pinned_memory() {
    static Pinned* all = new Pinned;
    return *all;
}

// Position of a marker: after the first `position` pieces of work of a stream, or after work of a graph that
// is captured.
struct Point {
    StreamKind stream = StreamKind::compute;
    std::uint64_t position = 0;
    const Graph* graph = nullptr;
    Graph::Point in_graph = {};
};
emulation::StreamIndex graph_stream(StreamKind kind) {
    return kind == StreamKind::communication ? emulation::communication_stream : emulation::main_stream;
}
Point& point_of(void* event) { return *static_cast<Point*>(event); }

}  // namespace

void* pinned_malloc(std::size_t bytes) {
    refuse_in_capture("cuda: pinned_malloc", "take memory from the system");
    require_no_capture("cudaMallocHost");
    Pinned& pinned = pinned_memory();
    const std::lock_guard lock(pinned.mutex);
    if (pinned.blocks.size() >= options.pinned_blocks) return nullptr;
    char* const memory = new char[bytes];
    std::memset(memory, 0xFF, bytes);
    pinned.blocks[memory] = {bytes, 0};
    return memory;
}

void pinned_free(void* memory) noexcept {
    Pinned& pinned = pinned_memory();
    const std::lock_guard lock(pinned.mutex);
    const auto found = pinned.blocks.find(static_cast<char*>(memory));
    check(found != pinned.blocks.end() && found->second.second == 0, ErrorKind::backend,
          "cuda: cudaFreeHost of memory that a copy reads");
    pinned.blocks.erase(found);
    delete[] static_cast<char*>(memory);
}

namespace {
void copy_pinned(void* to, const void* from, std::size_t bytes, StreamKind kind) {
    if (bytes == 0) return;
    refuse_in_capture("cuda: copy from pinned memory", "copy from the host");
    require_no_capture("cudaMemcpyAsync from pinned memory");
    if (emulation::on_copy_beside) emulation::on_copy_beside(to, bytes, false);
    const auto count = [first = static_cast<const char*>(from), bytes](int readers) {
        const std::lock_guard lock(pinned_memory().mutex);
        pinned_memory().readers(first, bytes) += readers;
    };
    count(1);
    Streams::get().add(kind, [=] {
        Engine::get().device_copy(to, from, bytes);
        if (emulation::on_copy_beside) emulation::on_copy_beside(to, bytes, true);
        count(-1);
    });
    count_copy(copied.pinned, bytes);
}
}  // namespace

void copy_beside(void* to, const void* from, std::size_t bytes) {
    copy_pinned(to, from, bytes, StreamKind::copy);
}
void copy_from_pinned(void* to, const void* from, std::size_t bytes) {
    CaptureOwner::require_own(current_device());
    copy_pinned(to, from, bytes, StreamKind::compute);
}

HostCopies host_copies() {
    const std::lock_guard lock(counting);
    return copied;
}

Marker::Marker(Use use) : use_(use), event_(new Point) {}
Marker::~Marker() { delete &point_of(event_); }
void Marker::refuse(const char* call, const char* what) const {
    if (use_ == Use::beside_graphs) refuse_in_capture(call, what);
}
void Marker::record(StreamKind stream) {
    refuse("cuda: record", "mark a point for copies");
    Point& point = point_of(event_);
    if (emulation::captured != nullptr && use_ == Use::in_graphs) {
        point = {.graph = emulation::captured, .in_graph = emulation::captured->point(graph_stream(stream))};
        return;
    }
    require_no_capture("cudaEventRecord");
    point = {stream, Streams::get().position(stream)};
}
void Marker::hold(StreamKind stream) const {
    refuse("cuda: hold", "wait for copies");
    const Point& point = point_of(event_);
    check(point.graph == emulation::captured, ErrorKind::backend, "cuda: cudaStreamWaitEvent failed with ",
          point.graph != nullptr ? "cudaErrorCapturedEvent" : "cudaErrorStreamCaptureIsolation");
    if (point.graph != nullptr)
        emulation::captured->hold(graph_stream(stream), point.in_graph);
    else
        Streams::get().hold(stream, point.stream, point.position);
}
bool Marker::passed() const {
    return Streams::get().done(point_of(event_).stream, point_of(event_).position);
}
void Marker::wait() const {
    Streams::get().run_until(point_of(event_).stream, point_of(event_).position);
    count(totals.host_syncs);
}

void count_launch() {
    CaptureOwner::require_own(current_device());
    count(totals.launches);
    if (options.clock_ms >= 0) options.clock_ms += options.launch_ms;
}
void check_launch() {}
void clear_error() noexcept {}
void allow_dynamic_shared(const void*, std::size_t) {}
unsigned grid_limit(unsigned block) {
    if (options.multiprocessors == 0) return options.grid_limit;
    return options.multiprocessors * std::min(2048 / block, 32u);  // as cuda/runtime/runtime.cpp
}

}  // namespace mezzo::cuda

std::size_t mezzo::emulation::pinned_blocks() {
    cuda::Pinned& pinned = cuda::pinned_memory();
    const std::lock_guard lock(pinned.mutex);
    return pinned.blocks.size();
}

// Device by device.
void* mezzo::emulation::stream_of(int device, StreamIndex stream) {
    static char streams[64][stream_count];
    return &streams[device][stream];
}
