// A profile as a file for Perfetto.
#include <unistd.h>

#include "insight/profile.h"
#include "io/chrome_trace.h"

namespace mezzo::insight {

namespace {

constexpr int step_track = 0;

// "float32 [8, 64], int64 [8]".
std::string text_of(const std::vector<ProfiledTensor>& tensors) {
    std::string text;
    for (const ProfiledTensor& x : tensors)
        text +=
            (text.empty() ? "" : ", ") + std::string(name(x.dtype)) + " " + mezzo::detail::text_of(x.shape);
    return text;
}

io::TraceArguments arguments_of(const ProfileEvent& event) {
    io::TraceArguments arguments;
    if (!event.module.empty()) arguments.emplace_back("module", event.module);
    arguments.emplace_back("step", event.step);
    if (event.bytes > 0) arguments.emplace_back("bytes", std::int64_t(event.bytes));
    if (event.flops > 0) arguments.emplace_back("flops", event.flops);
    if (!event.inputs.empty()) arguments.emplace_back("inputs", text_of(event.inputs));
    if (!event.results.empty()) arguments.emplace_back("results", text_of(event.results));
    return arguments;
}

}  // namespace

void Profiler::write_chrome_trace(const std::string& path) const {
    const int thread = int(gettid());
    io::ChromeTrace trace("Profiler.write_chrome_trace", path);
    trace.metadata("process_name", thread, "mezzo");
    trace.metadata("thread_name", thread, "profiled thread");
    // Ranges may lie across the ends of steps. Slices of one track nest, so that the steps have a track of their own.
    trace.metadata("thread_name", step_track, "steps");
    for (const ProfiledStep& step : steps())
        trace.complete("step " + std::to_string(step.number), "step", step.begin, step.duration, step_track);
    for (const ProfileEvent& event : events())
        trace.complete(event.name, name(event.kind), event.begin, event.duration, thread,
                       arguments_of(event));
    trace.finish();
}

}  // namespace mezzo::insight
