// What the library has to say beside errors. It never prints.
#pragma once

#include "mezzo/cpp20.h"

#include <cstddef>
#include <string_view>

#include "mezzo/callback.h"

#pragma GCC visibility push(default)

namespace mezzo {

using LogSink = autograd::Callback<void(std::string_view)>;

// Gives the sink each later message: one line, without a line feed, such as which fast paths a device has
// proven and which it has not, and why. In place of an earlier sink; there is none at first. It is called in
// the thread that meets the occasion, possibly in several at once, and may call the library. What it throws
// is ignored.
void set_log_sink(LogSink sink);
// Messages go nowhere again.
void set_log_sink(std::nullptr_t);

}  // namespace mezzo

#pragma GCC visibility pop
