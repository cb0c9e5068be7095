// Log sink for warnings. The library writes nothing to stdout or stderr.
//
//   set_log_sink([](std::string_view line) { std::cerr << line << '\n'; });
//   set_log_sink(nullptr);  // drops messages again
#pragma once

#include "mezzo/cpp20.h"

#include <cstddef>
#include <string_view>

#include "mezzo/callback.h"

#pragma GCC visibility push(default)

namespace mezzo {

using LogSink = autograd::Callback<void(std::string_view)>;

// Sets the sink of all later messages, and replaces an earlier one; there is none at first. A message is one
// line, without a line feed, for example the results of the self-checks of a device's fast paths. The sink is
// called in the thread that reports the message, possibly in several threads at once, and may call the
// library. Its exceptions are ignored.
void set_log_sink(LogSink sink);
// Removes the sink: messages are dropped.
void set_log_sink(std::nullptr_t);

}  // namespace mezzo

#pragma GCC visibility pop
