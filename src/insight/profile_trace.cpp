// Writes a profile as a Chrome trace, for Perfetto.
#include <unistd.h>

#include <set>

#include "insight/chrome_trace.h"
#include "insight/profile.h"

namespace mezzo::insight {

namespace {

constexpr int step_track = 0;
// Streams get track numbers that no thread has.
constexpr int first_stream_track = 1 << 30, streams_per_device = 1 << 20;

int track_of(const ProfiledDeviceWork& work) {
    return first_stream_track + work.device * streams_per_device + work.stream % streams_per_device;
}

// "float32 [8, 64], int64 [8]".
std::string text_of(const std::vector<ProfiledTensor>& tensors) {
    std::string text;
    for (const ProfiledTensor& x : tensors)
        text +=
            (text.empty() ? "" : ", ") + std::string(name(x.dtype)) + " " + mezzo::detail::text_of(x.shape);
    return text;
}

TraceArguments arguments_of(const ProfileEvent& event) {
    TraceArguments arguments;
    if (!event.module.empty()) arguments.emplace_back("module", event.module);
    arguments.emplace_back("step", event.step);
    if (event.bytes > 0) arguments.emplace_back("bytes", std::int64_t(event.bytes));
    if (event.flops > 0) arguments.emplace_back("flops", event.flops);
    if (!event.inputs.empty()) arguments.emplace_back("inputs", text_of(event.inputs));
    if (!event.results.empty()) arguments.emplace_back("results", text_of(event.results));
    return arguments;
}

// Adds a track per stream; each piece of work names the event that submitted it.
void add_device_work(ChromeTrace& trace, const std::vector<ProfiledDeviceWork>& all,
                     const std::vector<ProfileEvent>& events) {
    std::set<int> named;
    for (const ProfiledDeviceWork& work : all) {
        const int track = track_of(work);
        if (named.insert(track).second)
            trace.metadata(
                "thread_name", track,
                "device " + std::to_string(work.device) + ", stream " + std::to_string(work.stream));
        TraceArguments arguments;
        if (work.event >= 0) {
            const ProfileEvent& event = events[std::size_t(work.event)];
            arguments.emplace_back("event", event.name);
            if (!event.module.empty()) arguments.emplace_back("module", event.module);
            arguments.emplace_back("step", event.step);
        }
        trace.complete(work.name, "device", work.begin, work.duration, track, arguments);
    }
}

// Returns the system's number of this thread, which other tools show too; the process id where threads have
// none.
int thread_number() {
#ifdef __linux__
    return int(gettid());
#else
    return int(getpid());
#endif
}

}  // namespace

void Profiler::write_chrome_trace(const std::string& path) const {
    const int thread = thread_number();
    ChromeTrace trace("Profiler.write_chrome_trace", path);
    trace.metadata("process_name", thread, "mezzo");
    trace.metadata("thread_name", thread, "profiled thread");
    // Ranges may extend beyond the ends of steps. Slices of one track must nest, so steps have a track of
    // their own.
    trace.metadata("thread_name", step_track, "steps");
    for (const ProfiledStep& step : steps())
        trace.complete("step " + std::to_string(step.number), "step", step.begin, step.duration, step_track);
    const std::vector<ProfileEvent> all = events();
    for (const ProfileEvent& event : all)
        trace.complete(event.name, name(event.kind), event.begin, event.duration, thread,
                       arguments_of(event));
    add_device_work(trace, device_work(), all);
    trace.finish();
}

}  // namespace mezzo::insight
