// Where the time and the memory of training steps go: by op and by module, as tables and as a trace for Perfetto.
// docs/insight.md shows it at work.
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
    bool record_shapes = false;         // keep shapes and dtypes of the inputs and results of each op
    bool profile_memory = false;        // note which module's tensors live at the peak of `device`
    // Wait for the device before and after each op, so that on devices that work beside the host the times are those of the
    // work. Steps take longer for it.
    bool synchronize = false;
    // Note when kernels, copies and fills ran on the devices of the type of `device`, and which op has handed them over. This
    // needs CUPTI, which comes with the CUDA Toolkit. Without it the profiler has the host's times alone, and its tables say why.
    bool device_times = false;
    Device device = {};  // for the three above
    // The steps, as step() counts them, that are noted: `active` of them after the first skip_first; 0: all.
    std::int64_t skip_first = 0, active = 0;
    std::int64_t max_events = std::int64_t(1) << 20;  // later ones are only counted
};

enum class ProfileKind : std::uint8_t {
    op,        // of forward, or inside of another event
    backward,  // the gradient of an op: a node of the graph
    range,     // named by RecordFunction
};
[[nodiscard]] const char* name(ProfileKind kind);

struct ProfiledTensor {
    Shape shape;
    Dtype dtype = Dtype::float32;
};

// Something that took time on the profiled thread. Times are in nanoseconds since the profiler was made.
struct ProfileEvent {
    std::string name = {};  // "linear", "linear backward", "Optimizer.step"
    ProfileKind kind = ProfileKind::op;
    std::string module = {};  // the path of the module, such as "encoder.layers.3"; "" outside of all
    std::int64_t step = 0;
    std::int64_t begin = 0, duration = 0;
    int parent = -1;  // the event inside of which it is, by its place in the list; -1: none
    std::int64_t self_device_time =
        0;             // with device_times: of what it handed over, without the events inside of it
    double bytes = 0;  // of the op's inputs and results; 0 of other events
    double flops = 0;  // of products, convolutions and attention, 2 per multiplication and addition
    std::vector<ProfiledTensor> inputs = {}, results = {};  // with record_shapes, of ops
};

// A kernel, copy or fill that a device ran, with device_times.
struct ProfiledDeviceWork {
    std::string name = {};       // of the kernel, "copy to the device", "copy to the host", "copy" or "fill"
    int device = 0, stream = 0;  // streams have CUPTI's numbers
    std::int64_t begin = 0, duration = 0;  // nanoseconds, as of events
    int event =
        -1;  // that handed it over, by its place in events(); -1: none that is noted, or another thread
};

struct ProfiledStep {
    std::int64_t number = 0, begin = 0, duration = 0;  // nanoseconds, as of events
};

// Events of one name, or of one module.
struct ProfileRow {
    std::string name = {};
    std::int64_t calls = 0;
    double self_time = 0;   // seconds, without those of events inside of it
    double total_time = 0;  // seconds; of a module: with the modules inside of it
    double bytes = 0, flops = 0;
    // Seconds that the devices needed for what the events handed over, with device_times. What ran at the same time
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
    int rows = 30;  // at most; the rest is one line
};

// What one module held when most memory was in use, in bytes as the allocator rounds them.
struct ModuleMemory {
    std::string module = {};
    std::int64_t forward = 0;   // allocated by its ops in forward: results, and what they keep for backward
    std::int64_t backward = 0;  // allocated while its gradients were computed
    std::int64_t other = 0;     // in a RecordFunction, such as an optimizer's state, or outside of everything
    [[nodiscard]] std::int64_t total() const { return forward + backward + other; }
};
struct MemoryPeak {
    std::int64_t bytes = 0;   // of everything that lived
    std::int64_t before = 0;  // of it, what had been allocated before the noted steps, such as parameters
    std::int64_t step = 0;    // in which the peak was
    std::vector<ModuleMemory> modules = {};  // the largest first
};

struct [[gnu::visibility("hidden")]] ProfilerImpl;  // src/insight/profile.h

// While alive, notes what this thread does: each op, each gradient and each RecordFunction, when it began, how long it took, its
// module, bytes and FLOPs. On the CPU the times are those of the work. On other devices they are those of the host, which
// only hands work over, unless options.synchronize is set; options.device_times adds those of the devices. Replays of a
// captured step run no ops: of them there is only what is around. It must end in the thread that made it, before the model.
class [[nodiscard]] Profiler {
public:
    // Error(value) for negative numbers in the options or max_events of 0; Error(state) where another profiler of this thread
    // notes memory, or another one of the process device times.
    [[nodiscard]] explicit Profiler(const ProfilerOptions& options = {});
    ~Profiler();
    Profiler(const Profiler&) = delete;
    Profiler& operator=(const Profiler&) = delete;

    // Ends a step. Without it everything is step 0.
    void step();

    // What has been noted, in the order in which it began. What still runs ends now.
    [[nodiscard]] std::vector<ProfileEvent> events() const;
    [[nodiscard]] std::vector<ProfiledStep> steps() const;  // that were noted

    // Whether the devices' work is noted. All functions that read it wait for the devices while noted steps run.
    [[nodiscard]] bool device_times() const;
    // Why not, though options.device_times asks for it; else "".
    [[nodiscard]] std::string device_times_absence() const;
    [[nodiscard]] std::vector<ProfiledDeviceWork> device_work() const;  // in the order in which it began
    [[nodiscard]] std::int64_t dropped() const;  // events beyond max_events, or for which there was no memory
    [[nodiscard]] std::vector<ProfileRow> rows(ProfileGroup group_by = ProfileGroup::op) const;
    // The same as a text of at most 120 columns, with totals. Error(value) if options.rows is not positive.
    [[nodiscard]] std::string table(const ProfileTableOptions& options = {}) const;

    // Both throw Error(state) without options.profile_memory.
    [[nodiscard]] MemoryPeak memory() const;
    [[nodiscard]] std::string memory_table(int rows = 30) const;

    // Writes a file for ui.perfetto.dev or chrome://tracing, in the Trace Event Format. PATH is replaced as a whole.
    // Error(io) if it cannot be written.
    void write_chrome_trace(const std::string& path) const;

private:
    ProfilerImpl* impl_;
};

}  // namespace mezzo::insight

#pragma GCC visibility pop
