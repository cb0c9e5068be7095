// Message of the exception that is unwinding this thread's stack, for destructors.
#pragma once

#include <string>

#include "core/internal.h"

namespace mezzo {

// Returns the message of the calling thread's newest Error as long as that exception lives; else "".
MEZZO_INTERNAL std::string live_error();

}  // namespace mezzo
