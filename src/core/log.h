// Messages to the user's sink (mezzo/log.h).
#pragma once

#include <string_view>

namespace mezzo {

// Calls the sink, if there is one. Does not throw. Not to be called with a lock held that the library needs.
void log_line(std::string_view line) noexcept;

}  // namespace mezzo
