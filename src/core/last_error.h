// The words of an exception that is on its way out.
#pragma once

#include <string>

namespace mezzo {

// What the calling thread's newest Error says, for as long as that exception lives; else "". For destructors that run while it unwinds the
// stack.
std::string live_error();

}  // namespace mezzo
