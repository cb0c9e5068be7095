// The set of processors that this process may run on (CPU affinity).
#pragma once

#include <string>

#include "core/internal.h"

namespace mezzo {

// Number of these processors, at least 1. If the system does not report the set (only Linux does), all of the
// machine's.
MEZZO_INTERNAL int available_processors();

// Bit mask of these processors in hexadecimal: one character for four of them from number 0 on, without zeros
// at the end. Empty if the system does not report the set.
MEZZO_INTERNAL std::string processor_set();

}  // namespace mezzo
