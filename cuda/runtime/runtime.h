// The CUDA runtime as mezzo uses it: devices, memory, copies, one stream per device, events. Kernels, the
// allocator and the GEMM service reach the runtime through this header only, so that the same code also runs
// over an emulated device in the tests.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mezzo::cuda {

// Usable devices; 0 without driver or GPU.
int device_count();
// The runtime's reason for having no usable device; "" if it gave none. Valid for the process' life.
const char* device_absence();

struct DeviceInfo {
    char name[256];
    int major, minor;  // compute capability
    int multiprocessors;
    std::size_t total_memory;  // bytes
    std::size_t l2_bytes;
};
DeviceInfo device_info(int device);
// Compute capability, times ten, of the PTX from which the device's kernels were made. Queries the runtime
// once.
int kernel_capability(int device);
// The latest version of CUDA that the driver has, and that of the runtime, such as 13010 for 13.1.
int driver_version();
int runtime_version();

// The current device of the calling thread; 0 until set.
void set_device(int device);
int current_device();

// Memory of the current device, at least 256-byte aligned. nullptr when it is exhausted.
void* device_malloc(std::size_t bytes);
void device_free(void* memory) noexcept;

// Copies and fills are ordered on the current stream. Host memory may be reused on return.
void copy_to_device(void* to, const void* from, std::size_t bytes);
void copy_to_host(void* to, const void* from, std::size_t bytes);  // waits for the stream
void copy_on_device(void* to, const void* from, std::size_t bytes);
void fill_zero(void* memory, std::size_t bytes);

// Waits until everything on the current stream is done; reports errors of kernels that ran meanwhile.
void synchronize();

// The current device's stream (a cudaStream_t), created at first use.
void* current_stream();

// Between begin_capture() and end_capture(), the launches, fills and copies on the device that the calling
// thread queues on the current stream become a graph instead of running. Calls that cannot be captured
// (memory, copies to and from the host, waiting) throw Error(state), and the capture goes on. end_capture()
// ends it in any case.
void begin_capture();
void* end_capture();             // the graph, to be given to destroy_graph()
void launch_graph(void* graph);  // on the current stream; counts as one launch
void destroy_graph(void* graph) noexcept;

// Whether the current stream's work is being captured into a graph instead of run: nothing may wait for it.
bool stream_is_capturing();

// Counts of this process's calls to the device so far; tests compare two readings.
struct Counters {
    std::uint64_t launches, host_syncs, copies;
};
Counters counters();

// A point on the current stream, for timing.
class Event {
public:
    Event();
    ~Event();
    Event(const Event&) = delete;
    Event& operator=(const Event&) = delete;
    void record();
    // Milliseconds from `start` to this event; waits for both.
    float elapsed_ms(const Event& start) const;

private:
    void* event_ = nullptr;
};

// Copies from the host on a stream of their own, which run while the current stream works.

// Page-locked host memory, which the device reads by itself. nullptr when there is none.
void* pinned_malloc(std::size_t bytes);
void pinned_free(void* memory) noexcept;  // no copy may still read it

// Streams of the current device: current_stream(), that of copy_beside(), and that on which processes
// exchange memory.
enum class StreamKind { compute, copy, communication };

// Scope in which the calling thread's launches, fills and copies on the device go to the communication
// stream. It has a higher priority than the others, because other processes wait for its work. Scopes do not
// nest.
class OnCommunicationStream {
public:
    OnCommunicationStream() noexcept;
    ~OnCommunicationStream();
    OnCommunicationStream(const OnCommunicationStream&) = delete;
    OnCommunicationStream& operator=(const OnCommunicationStream&) = delete;
};

// Queues a copy on the copy stream. The host memory is pinned, and must stay as it is until a marker after
// the copy has passed.
void copy_beside(void* to, const void* pinned, std::size_t bytes);

// A point on a stream, for ordering, not for timing.
class Marker {
public:
    // Whether record() and hold() may become part of a captured graph. They may not on the copy stream.
    enum class Use { beside_graphs, in_graphs };
    explicit Marker(Use use = Use::beside_graphs);
    ~Marker();
    Marker(const Marker&) = delete;
    Marker& operator=(const Marker&) = delete;
    void record(StreamKind stream);
    // Makes work that is queued on the stream from now on wait for the point. The host does not wait.
    void hold(StreamKind stream) const;
    bool passed() const;  // true if it was never recorded
    // Makes the host wait for the point. Allowed while the calling thread captures its current stream,
    // because the copy stream is never part of a graph.
    void wait() const;

private:
    void refuse(const char* call, const char* what) const;

    const Use use_;
    void* event_ = nullptr;
};

// Used by launch() and grid_for() of kernel.cuh.
void count_launch();
void check_launch();                                               // throws if the last launch was refused
void allow_dynamic_shared(const void* kernel, std::size_t bytes);  // needed above 48 KiB
unsigned grid_limit(unsigned block);  // blocks of this size that fill the device; few under emulation

}  // namespace mezzo::cuda
