// Writes Google's "Trace Event Format": the JSON object form, with events of the phases X and M.
#include "insight/chrome_trace.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>

#include "io/json.h"

namespace mezzo::insight {

namespace {

constexpr std::size_t most_waiting = std::size_t(1) << 16;

// Appends text in quotes, with a replacement character instead of each byte that is not UTF-8.
void append(std::string& out, std::string_view text) {
    std::string valid;
    for (std::size_t bad; (bad = io::first_invalid_utf8(text)) < text.size(); text.remove_prefix(bad + 1))
        valid.append(text.substr(0, bad)).append("\xef\xbf\xbd");
    io::append_quoted(out, valid.append(text));
}
// JSON has no number that is not finite.
void append(std::string& out, double value) {
    out += std::isfinite(value) ? fmt::format("{}", value) : "null";
}
void append(std::string& out, std::int64_t value) { out += fmt::format("{}", value); }

template <class T> void add_field(std::string& event, std::string_view name, const T& value) {
    if (event.back() != '{') event += ',';
    append(event, name);
    event += ':';
    append(event, value);
}

std::string event_of(std::string_view phase, const std::string& name, int thread) {
    std::string event = "{";
    add_field(event, "ph", phase);
    add_field(event, "name", std::string_view(name));
    add_field(event, "pid", std::int64_t(getpid()));
    add_field(event, "tid", std::int64_t(thread));
    return event;
}

// The format's times are in microseconds.
double microseconds(std::int64_t nanoseconds) { return double(nanoseconds) / 1000; }

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
    std::string event = event_of("X", name, thread);
    add_field(event, "cat", std::string_view(category));
    add_field(event, "ts", microseconds(begin));
    add_field(event, "dur", microseconds(duration));
    event += ",\"args\":{";
    for (const auto& argument : arguments)
        std::visit([&](const auto& value) { add_field(event, argument.first, value); }, argument.second);
    add(event + "}}");
}

void ChromeTrace::metadata(const std::string& what, int thread, const std::string& name) {
    std::string event = event_of("M", what, thread) + ",\"args\":{";
    add_field(event, "name", std::string_view(name));
    add(event + "}}");
}

void ChromeTrace::finish() {
    waiting_ += "\n]}\n";
    file_.write(waiting_);
    file_.commit();
}

}  // namespace mezzo::insight
