#include "core/system/log_line.h"

#include <mutex>
#include <optional>

#include "mezzo/log.h"

namespace mezzo {
namespace {

struct Current {
    std::mutex mutex;
    std::optional<LogSink> sink;
};
// Leaked: threads may log during exit.
Current& current() {
    static Current* const all = new Current;
    return *all;
}

void replace(std::optional<LogSink> sink) {
    const std::lock_guard lock(current().mutex);
    current().sink.swap(sink);
}

}  // namespace

void set_log_sink(LogSink sink) { replace(std::move(sink)); }
void set_log_sink(std::nullptr_t) { replace({}); }

void log_line(std::string_view line) noexcept {
    try {
        std::optional<LogSink> sink;
        {
            const std::lock_guard lock(current().mutex);
            sink = current().sink;
        }
        if (sink) (*sink)(line);
    } catch (...) {  // a message is not worth a failed step
    }
}

}  // namespace mezzo
