#include "cuda/runtime/runtime.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "core/step_recorder.h"
#include "cuda/elementwise/copies.h"
#include "cuda/runtime/capture_owner.h"
#include "cuda/runtime/clear_error.h"
#include "cuda/runtime/device_id.h"
#include "cuda/runtime/devices.h"
#include "mezzo/error.h"

namespace mezzo::cuda {
namespace {

std::atomic<std::uint64_t> launch_count, sync_count, copy_count;

struct AtomicCount {
    std::atomic<std::uint64_t> count, bytes;
    void add(std::size_t copied) {
        count.fetch_add(1, std::memory_order_relaxed);
        bytes.fetch_add(copied, std::memory_order_relaxed);
        copy_count.fetch_add(1, std::memory_order_relaxed);
    }
    CopyCount now() const {
        return {count.load(std::memory_order_relaxed), bytes.load(std::memory_order_relaxed)};
    }
};
AtomicCount pinned_copies, pageable_copies, copies_to_host;

void ok(cudaError_t status, const char* call) {
    if (status == cudaSuccess) return;
    cudaGetLastError();  // the next call must not report it again
    const auto kind = status == cudaErrorMemoryAllocation ? ErrorKind::memory : ErrorKind::backend;
    fail(kind, "cuda: ", call, " failed with ", cudaGetErrorName(status), " (", int(status),
         "): ", cudaGetErrorString(status));
}

// Clears the error of a call that has no way to report a failure. Otherwise the check of the next launch
// would report it for that kernel.
void ignore(cudaError_t status) noexcept {
    if (status != cudaSuccess) cudaGetLastError();
}

// Memory that a call has allocated; null if there is not enough.
void* allocated(cudaError_t status, void* memory, const char* call) {
    if (status == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        return nullptr;
    }
    ok(status, call);
    return memory;
}

// Number of multiprocessors, and the most threads and blocks that each holds.
struct Limits {
    std::uint16_t multiprocessors = 0, threads = 0, blocks = 0, unused = 0;
};
static_assert(std::atomic<Limits>::is_always_lock_free);

// State that is made or queried once for every device. Leaked: the driver may be gone when destructors of
// statics run.
struct Devices {
    std::mutex mutex;  // for what is made; every launch reads the two lists of atomics without it
    std::vector<std::atomic<cudaStream_t>> streams;
    std::vector<std::atomic<Limits>> limits;
    explicit Devices(std::size_t count) : streams(count), limits(count) {}
};
Devices& devices() {
    static Devices* const all = new Devices(static_cast<std::size_t>(device_count()));
    return *all;
}

// Index of the current device. CUDA's own first one may be left out.
std::size_t used_device() {
    const auto device = static_cast<std::size_t>(current_device());
    check(device < devices().streams.size(), ErrorKind::backend, "cuda: no usable device");
    return device;
}

// Creates a stream that is not the legacy default stream, which cannot be captured into a graph.
void make_stream(cudaStream_t& stream) {
    if (stream == nullptr)
        ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
}

cudaStream_t main_stream() {
    const std::size_t device = used_device();
    Devices& all = devices();
    CaptureOwner::require_own(int(device));
    cudaStream_t found = all.streams[device].load(std::memory_order_acquire);
    if (found != nullptr) return found;
    const std::lock_guard lock(all.mutex);
    found = all.streams[device].load(std::memory_order_relaxed);
    make_stream(found);
    all.streams[device].store(found, std::memory_order_release);
    return found;
}

thread_local bool communicating = false;  // the communication stream takes this thread's work

// The stream for exchanges between processes. As all streams, it is made at its first use.
cudaStream_t communication_stream() {
    static std::mutex mutex;
    static auto& streams = *new std::vector<cudaStream_t>(static_cast<std::size_t>(device_count()));
    cudaStream_t& found = streams[used_device()];
    const std::lock_guard lock(mutex);
    if (found != nullptr) return found;
    int least = 0, greatest = 0;
    ok(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
    ok(cudaStreamCreateWithPriority(&found, cudaStreamNonBlocking, greatest), "cudaStreamCreateWithPriority");
    return found;
}

cudaStream_t stream() { return static_cast<cudaStream_t>(current_stream()); }

}  // namespace

DeviceInfo device_info(int device) {
    cudaDeviceProp properties{};
    ok(cudaGetDeviceProperties(&properties, ordinal_of(device)), "cudaGetDeviceProperties");
    DeviceInfo info{};
    std::memcpy(info.name, properties.name, sizeof info.name);
    info.name[sizeof info.name - 1] = 0;
    info.major = properties.major;
    info.minor = properties.minor;
    info.multiprocessors = properties.multiProcessorCount;
    info.total_memory = properties.totalGlobalMem;
    info.l2_bytes = static_cast<std::size_t>(properties.l2CacheSize);
    return info;
}

std::string device_id(int device) {
    cudaDeviceProp properties{};
    ok(cudaGetDeviceProperties(&properties, ordinal_of(device)), "cudaGetDeviceProperties");
    return {properties.uuid.bytes, sizeof properties.uuid.bytes};
}

int driver_version() {
    int version = 0;
    ok(cudaDriverGetVersion(&version), "cudaDriverGetVersion");
    return version;
}

int runtime_version() {
    int version = 0;
    ok(cudaRuntimeGetVersion(&version), "cudaRuntimeGetVersion");
    return version;
}

// Every op sets its device. Asking which one is current is cheaper than setting it again.
void set_device(int device) {
    if (current_device() != device) ok(cudaSetDevice(ordinal_of(device)), "cudaSetDevice");
}

int current_device() {
    int ordinal = 0;
    ok(cudaGetDevice(&ordinal), "cudaGetDevice");
    return index_of(ordinal);
}

void* device_malloc(std::size_t bytes) {
    refuse_in_capture("cuda: device_malloc", "take memory from the system");
    void* memory = nullptr;
    const cudaError_t status = cudaMalloc(&memory, bytes != 0 ? bytes : 1);
    return allocated(status, memory, "cudaMalloc");
}

void device_free(void* memory) noexcept { ignore(cudaFree(memory)); }

void copy_to_device(void* to, const void* from, std::size_t bytes) {
    if (bytes == 0) return;
    refuse_in_capture("cuda: copy_to_device", "copy from the host");
    ok(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream()), "cudaMemcpyAsync to the device");
    pageable_copies.add(bytes);
    if (bytes > pageable_limit) sync_count.fetch_add(1, std::memory_order_relaxed);
}

void copy_to_host(void* to, const void* from, std::size_t bytes) {
    if (bytes == 0) return;
    refuse_in_capture("cuda: copy_to_host", "copy to the host");
    ok(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream()), "cudaMemcpyAsync to the host");
    copies_to_host.add(bytes);
    synchronize();
}

void copy_on_device(void* to, const void* from, std::size_t bytes) {
    if (bytes == 0) return;
    ok(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream()), "cudaMemcpyAsync on the device");
    copy_count.fetch_add(1, std::memory_order_relaxed);
}

void fill_zero(void* memory, std::size_t bytes) {
    if (bytes == 0) return;
    ok(cudaMemsetAsync(memory, 0, bytes, stream()), "cudaMemsetAsync");
}

void synchronize() {
    refuse_in_capture("cuda: synchronize", "wait for the device");
    ok(cudaStreamSynchronize(stream()), "cudaStreamSynchronize");
    sync_count.fetch_add(1, std::memory_order_relaxed);
}

void* current_stream() { return communicating ? communication_stream() : main_stream(); }

OnCommunicationStream::OnCommunicationStream() noexcept { communicating = true; }
OnCommunicationStream::~OnCommunicationStream() { communicating = false; }

// Thread-local: other threads may go on allocating, the restrictions of a capture hold for this one only.
void begin_capture() {
    cudaStream_t const captured = stream();
    CaptureOwner::begin(current_device());
    const cudaError_t begun = cudaStreamBeginCapture(captured, cudaStreamCaptureModeThreadLocal);
    if (begun != cudaSuccess) CaptureOwner::end(current_device());
    ok(begun, "cudaStreamBeginCapture");
}

void* end_capture() {
    cudaGraph_t graph = nullptr;
    const cudaError_t ended = cudaStreamEndCapture(stream(), &graph);
    CaptureOwner::end(current_device());
    ok(ended, "cudaStreamEndCapture");
    cudaGraphExec_t executable = nullptr;
    const cudaError_t status = cudaGraphInstantiate(&executable, graph, 0);
    ignore(cudaGraphDestroy(graph));
    ok(status, "cudaGraphInstantiate");
    return executable;
}

void launch_graph(void* graph) {
    ok(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), stream()), "cudaGraphLaunch");
    count_launch();
}

// A graph that still runs is freed when it has ended.
void destroy_graph(void* graph) noexcept {
    ignore(cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph)));
}

bool stream_is_capturing() {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    ok(cudaStreamIsCapturing(stream(), &status), "cudaStreamIsCapturing");
    return status != cudaStreamCaptureStatusNone;
}

Counters counters() {
    return {launch_count.load(std::memory_order_relaxed), sync_count.load(std::memory_order_relaxed),
            copy_count.load(std::memory_order_relaxed)};
}

Event::Event() {
    cudaEvent_t event = nullptr;
    ok(cudaEventCreate(&event), "cudaEventCreate");
    event_ = event;
}

Event::~Event() { ignore(cudaEventDestroy(static_cast<cudaEvent_t>(event_))); }

void Event::record() { ok(cudaEventRecord(static_cast<cudaEvent_t>(event_), stream()), "cudaEventRecord"); }

float Event::elapsed_ms(const Event& start) const {
    refuse_in_capture("cuda: elapsed_ms", "wait for the device");
    const auto from = static_cast<cudaEvent_t>(start.event_), to = static_cast<cudaEvent_t>(event_);
    ok(cudaEventSynchronize(to), "cudaEventSynchronize");
    sync_count.fetch_add(1, std::memory_order_relaxed);
    float milliseconds = 0;
    ok(cudaEventElapsedTime(&milliseconds, from, to), "cudaEventElapsedTime");
    return milliseconds;
}

namespace {

cudaStream_t stream_of(StreamKind kind) {
    if (kind == StreamKind::compute) return stream();
    if (kind == StreamKind::communication) return communication_stream();
    static std::mutex mutex;
    static auto& streams = *new std::vector<cudaStream_t>(static_cast<std::size_t>(device_count()));
    cudaStream_t& found = streams[used_device()];
    const std::lock_guard lock(mutex);
    if (found == nullptr)
        ok(cudaStreamCreateWithFlags(&found, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    return found;
}

cudaEvent_t event_of(void* event) { return static_cast<cudaEvent_t>(event); }

// Scope in which the calling thread may query events of other streams although it is capturing its own.
class BesideCapture {
public:
    BesideCapture() { ignore(cudaThreadExchangeStreamCaptureMode(&mode_)); }
    ~BesideCapture() { ignore(cudaThreadExchangeStreamCaptureMode(&mode_)); }
    BesideCapture(const BesideCapture&) = delete;
    BesideCapture& operator=(const BesideCapture&) = delete;

private:
    cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace

void* pinned_malloc(std::size_t bytes) {
    refuse_in_capture("cuda: pinned_malloc", "take memory from the system");
    void* memory = nullptr;
    const cudaError_t status = cudaMallocHost(&memory, bytes != 0 ? bytes : 1);
    return allocated(status, memory, "cudaMallocHost");
}

void pinned_free(void* memory) noexcept { ignore(cudaFreeHost(memory)); }

namespace {
void copy_pinned(void* to, const void* pinned, std::size_t bytes, StreamKind kind) {
    if (bytes == 0) return;
    refuse_in_capture("cuda: copy from pinned memory", "copy from the host");
    ok(cudaMemcpyAsync(to, pinned, bytes, cudaMemcpyHostToDevice, stream_of(kind)),
       "cudaMemcpyAsync from pinned memory");
    pinned_copies.add(bytes);
}
}  // namespace

void copy_beside(void* to, const void* pinned, std::size_t bytes) {
    copy_pinned(to, pinned, bytes, StreamKind::copy);
}
void copy_from_pinned(void* to, const void* pinned, std::size_t bytes) {
    copy_pinned(to, pinned, bytes, StreamKind::compute);
}

HostCopies host_copies() {
    return {
        .pinned = pinned_copies.now(), .pageable = pageable_copies.now(), .to_host = copies_to_host.now()};
}

Marker::Marker(Use use) : use_(use) {
    cudaEvent_t event = nullptr;
    ok(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    event_ = event;
}

Marker::~Marker() { ignore(cudaEventDestroy(event_of(event_))); }

void Marker::refuse(const char* call, const char* what) const {
    if (use_ == Use::beside_graphs) refuse_in_capture(call, what);
}

void Marker::record(StreamKind kind) {
    refuse("cuda: record", "mark a point for copies");
    ok(cudaEventRecord(event_of(event_), stream_of(kind)), "cudaEventRecord");
}

void Marker::hold(StreamKind kind) const {
    refuse("cuda: hold", "wait for copies");
    ok(cudaStreamWaitEvent(stream_of(kind), event_of(event_), 0), "cudaStreamWaitEvent");
}

bool Marker::passed() const {
    const BesideCapture scope;
    const cudaError_t status = cudaEventQuery(event_of(event_));
    if (status == cudaErrorNotReady) {
        cudaGetLastError();
        return false;
    }
    ok(status, "cudaEventQuery");
    return true;
}

void Marker::wait() const {
    const BesideCapture scope;
    ok(cudaEventSynchronize(event_of(event_)), "cudaEventSynchronize");
    sync_count.fetch_add(1, std::memory_order_relaxed);
}

void count_launch() { launch_count.fetch_add(1, std::memory_order_relaxed); }

void clear_error() noexcept { cudaGetLastError(); }

void check_launch() { ok(cudaGetLastError(), "kernel launch"); }

void allow_dynamic_shared(const void* kernel, std::size_t bytes) {
    ok(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes)),
       "cudaFuncSetAttribute (dynamic shared memory)");
}

unsigned grid_limit(unsigned block) {
    const std::size_t device = used_device();
    Devices& all = devices();
    Limits limits = all.limits[device].load(std::memory_order_relaxed);
    if (limits.multiprocessors == 0) {
        const auto attribute = [device](cudaDeviceAttr what) {
            int value = 0;
            ok(cudaDeviceGetAttribute(&value, what, ordinal_of(int(device))), "cudaDeviceGetAttribute");
            return static_cast<std::uint16_t>(value);
        };
        limits = {attribute(cudaDevAttrMultiProcessorCount),
                  attribute(cudaDevAttrMaxThreadsPerMultiProcessor),
                  attribute(cudaDevAttrMaxBlocksPerMultiprocessor)};
        all.limits[device].store(limits, std::memory_order_relaxed);
    }
    return limits.multiprocessors * std::max(1u, std::min<unsigned>(limits.threads / block, limits.blocks));
}

}  // namespace mezzo::cuda
