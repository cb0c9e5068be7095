// Writes Google's "Trace Event Format": the JSON object form, with events of the phases X and M.
#include "insight/chrome_trace.h"

#include <unistd.h>

#include <nlohmann/json.hpp>

namespace mezzo::io {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t most_waiting = std::size_t(1) << 16;

std::string text_of(const Json& event) { return event.dump(-1, ' ', false, Json::error_handler_t::replace); }

// The format's times are in microseconds.
double microseconds(std::int64_t nanoseconds) { return double(nanoseconds) / 1000; }

Json event_of(const char* phase, const std::string& name, int thread) {
    return {{"ph", phase}, {"name", name}, {"pid", getpid()}, {"tid", thread}};
}

}  // namespace

ChromeTrace::ChromeTrace(const char* op, const std::string& path) : file_(op, path) {
    waiting_ = "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n";
}

void ChromeTrace::add(std::string text) {
    if (!first_) waiting_ += ",\n";
    first_ = false;
    waiting_ += text;
    if (waiting_.size() < most_waiting) return;
    file_.write(waiting_);
    waiting_.clear();
}

void ChromeTrace::complete(const std::string& name, const std::string& category, std::int64_t begin,
                           std::int64_t duration, int thread, const TraceArguments& arguments) {
    Json event = event_of("X", name, thread);
    event["cat"] = category;
    event["ts"] = microseconds(begin);
    event["dur"] = microseconds(duration);
    Json& args = event["args"] = Json::object();
    for (const auto& argument : arguments)
        std::visit([&](const auto& value) { args[argument.first] = value; }, argument.second);
    add(text_of(event));
}

void ChromeTrace::metadata(const std::string& what, int thread, const std::string& name) {
    Json event = event_of("M", what, thread);
    event["args"] = {{"name", name}};
    add(text_of(event));
}

void ChromeTrace::finish() {
    waiting_ += "\n]}\n";
    file_.write(waiting_);
    file_.commit();
}

}  // namespace mezzo::io
