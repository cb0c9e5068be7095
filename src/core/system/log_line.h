// Calls the user's log sink (mezzo/log.h).
#pragma once

#include <string_view>

#include "core/internal.h"

namespace mezzo {

// Calls the sink, if there is one. Does not throw. Must not be called while a lock is held that the library
// needs.
MEZZO_INTERNAL void log_line(std::string_view line) noexcept;

}  // namespace mezzo
