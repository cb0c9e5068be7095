// Traces in the Trace Event Format, which ui.perfetto.dev and chrome://tracing show.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "io/file.h"

namespace mezzo::insight {

using TraceArgument = std::variant<std::int64_t, double, std::string>;
using TraceArguments = std::vector<std::pair<std::string, TraceArgument>>;

// Writes one event after another; finish() replaces PATH. All functions throw Error(io) if the file cannot be
// written. In texts that are not valid UTF-8, replacement characters are written. Times are in nanoseconds.
class ChromeTrace {
public:
    // Error texts begin with `op`.
    ChromeTrace(const char* op, const std::string& path);
    // An event with a beginning and an end ("X").
    void complete(const std::string& name, const std::string& category, std::int64_t begin,
                  std::int64_t duration, int thread, const TraceArguments& arguments = {});
    // Names a process or thread ("M"): `what` is "process_name" or "thread_name".
    void metadata(const std::string& what, int thread, const std::string& name);
    void finish();

private:
    void add(std::string text);
    io::ReplacedFile file_;
    std::string waiting_;  // buffered text, for fewer and larger writes
    bool first_ = true;
};

}  // namespace mezzo::insight
