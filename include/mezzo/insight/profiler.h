// Profiler of training steps: time and memory by op and by module, as tables and as a trace for Perfetto.
// docs/guide/profiling.md has examples.
//
//   insight::Profiler profiler({.model = &net, .profile_memory = true});
//   loss = train(x, labels);
//   std::cout << profiler.table() << profiler.memory_table();
//   profiler.write_chrome_trace("trace.json");
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mezzo/device.h"
#include "mezzo/module.h"
#include "mezzo/record_function.h"

#pragma GCC visibility push(default)

namespace mezzo::insight {

struct ProfilerOptions {
    const nn::Module* model = nullptr;  // to name modules; must outlive the profiler
    bool record_shapes = false;         // record shapes and dtypes of the inputs and results of each op
    // record which modules' tensors are alive at the memory peak of `device`
    bool profile_memory = false;
    // Waits for the device before and after each op, so that the times of asynchronous devices are those of
    // the work. Makes steps slower.
    bool synchronize = false;
    // Records when kernels, copies and fills ran on the devices of the type of `device`, and which op
    // launched them. Needs CUPTI, which comes with the CUDA Toolkit. Without it the profiler has only the
    // host's times, and its tables give the reason.
    bool device_times = false;
    Device device = {};  // for the three above
    // The recorded steps, as counted by step(): `active` steps after the first skip_first; 0: all of them.
    std::int64_t skip_first = 0, active = 0;
    std::int64_t max_events = std::int64_t(1) << 20;  // later events are only counted
};

enum class ProfileKind : std::uint8_t {
    op,        // an op of forward, or one that runs inside another event
    backward,  // the gradient of an op: a node of the graph
    range,     // named by RecordFunction
};
[[nodiscard]] const char* name(ProfileKind kind);

struct ProfiledTensor {
    Shape shape;
    Dtype dtype = Dtype::float32;
};

// An event on the profiled thread. Times are in nanoseconds since the profiler was constructed.
struct ProfileEvent {
    std::string name = {};  // "linear", "linear backward", "Optimizer.step"
    ProfileKind kind = ProfileKind::op;
    std::string module = {};  // the path of the module, such as "encoder.layers.3"; "" outside of modules
    std::int64_t step = 0;
    std::int64_t begin = 0, duration = 0;
    int parent = -1;  // index in events() of the enclosing event; -1: none
    // with device_times: of the work that it launched, without nested events
    std::int64_t self_device_time = 0;
    double bytes = 0;  // of the op's inputs and results; 0 of other events
    double flops = 0;  // of products, convolutions and attention, 2 per multiplication and addition
    std::vector<ProfiledTensor> inputs = {}, results = {};  // with record_shapes, of ops
};

// A kernel, copy or fill that a device ran, with device_times.
struct ProfiledDeviceWork {
    std::string name = {};       // of the kernel, "copy to the device", "copy to the host", "copy" or "fill"
    int device = 0, stream = 0;  // streams have CUPTI's numbers
    std::int64_t begin = 0, duration = 0;  // nanoseconds, as of events
    // index in events() of the event that launched it; -1: not recorded, or of another thread
    int event = -1;
};

struct ProfiledStep {
    std::int64_t number = 0, begin = 0, duration = 0;  // nanoseconds, as of events
};

// Totals of the events of one name, or of one module.
struct ProfileRow {
    std::string name = {};
    std::int64_t calls = 0;
    double self_time = 0;   // seconds, without nested events
    double total_time = 0;  // seconds; of a module: with the modules inside of it
    double bytes = 0, flops = 0;
    // Seconds of device work that the events launched, with device_times. Work that ran at the same time
    // counts twice.
    double self_device_time = 0, device_time = 0;
};

enum class ProfileGroup : std::uint8_t { op, module };
enum class ProfileSort : std::uint8_t {
    self_time,
    total_time,
    calls,
    bytes,
    flops,
    name,
    self_device_time,
    device_time,
};
struct ProfileTableOptions {
    ProfileGroup group_by = ProfileGroup::op;
    ProfileSort sort_by = ProfileSort::self_time;
    int rows = 30;  // at most; the others are summed in one line
};

// Memory that one module held at the peak, in bytes as the allocator rounds them.
struct ModuleMemory {
    std::string module = {};
    std::int64_t forward = 0;   // allocated by its ops in forward: results, and tensors saved for backward
    std::int64_t backward = 0;  // allocated while its gradients were computed
    // allocated in a RecordFunction, such as an optimizer's state, or outside of all events
    std::int64_t other = 0;
    [[nodiscard]] std::int64_t total() const { return forward + backward + other; }
};
struct MemoryPeak {
    std::int64_t bytes = 0;   // of all live tensors
    std::int64_t before = 0;  // the part that was allocated before the recorded steps, such as parameters
    std::int64_t step = 0;    // the step of the peak
    std::vector<ModuleMemory> modules = {};  // the largest first
};

struct [[gnu::visibility("hidden")]] ProfilerImpl;  // src/insight/profile.h

// While alive, records each op, each gradient and each RecordFunction of this thread: begin, duration,
// module, bytes and FLOPs. On the CPU the times are those of the work. On other devices they are those of the
// host, which only launches the work, unless options.synchronize is set; options.device_times adds the
// devices' times. Replays of a captured step run no ops, so only the events around them are recorded. The
// profiler must be destroyed in the thread that made it, before the model.
class [[nodiscard]] Profiler {
public:
    // Throws Error(value) for negative numbers in the options or max_events of 0; Error(state) if another
    // profiler of this thread records memory, or another one of this process records device times.
    [[nodiscard]] explicit Profiler(const ProfilerOptions& options = {});
    ~Profiler();
    Profiler(const Profiler&) = delete;
    Profiler& operator=(const Profiler&) = delete;

    // Ends a step. Without calls all events belong to step 0.
    void step();

    // The recorded events, in the order in which they began. Events that still run get the current time as
    // their end.
    [[nodiscard]] std::vector<ProfileEvent> events() const;
    [[nodiscard]] std::vector<ProfiledStep> steps() const;  // recorded steps

    // Whether the devices' work is recorded. All functions that read it wait for the devices during recorded
    // steps.
    [[nodiscard]] bool device_times() const;
    // The reason why it is not, if options.device_times is set; else "".
    [[nodiscard]] std::string device_times_absence() const;
    [[nodiscard]] std::vector<ProfiledDeviceWork> device_work() const;  // in the order in which it began
    [[nodiscard]] std::int64_t dropped() const;  // events beyond max_events, or lost for lack of memory
    [[nodiscard]] std::vector<ProfileRow> rows(ProfileGroup group_by = ProfileGroup::op) const;
    // The rows as text of at most 120 columns, with totals. Throws Error(value) if options.rows is not
    // positive.
    [[nodiscard]] std::string table(const ProfileTableOptions& options = {}) const;

    // Both throw Error(state) without options.profile_memory.
    [[nodiscard]] MemoryPeak memory() const;
    [[nodiscard]] std::string memory_table(int rows = 30) const;

    // Writes a file for ui.perfetto.dev or chrome://tracing, in the Trace Event Format. Replaces the file
    // atomically. Throws Error(io) if it cannot be written.
    void write_chrome_trace(const std::string& path) const;

private:
    ProfilerImpl* impl_;
};

}  // namespace mezzo::insight

#pragma GCC visibility pop
