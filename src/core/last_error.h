// Message of the exception that is unwinding this thread's stack, for destructors.
#pragma once

#include <string>

namespace mezzo {

// Returns the message of the calling thread's newest Error as long as that exception lives; else "".
std::string live_error();

}  // namespace mezzo
