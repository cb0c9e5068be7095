// A backend outside the library: memory, copies and five kernels (fill, cast, copy_into, add, matmul).
#pragma once

#include "mezzo/device.h"

namespace mezzo::test {

// Returns the device; the first call registers it. Its addresses are not the host's, so that code which reads
// its memory without a copy crashes.
Device third_backend();

}  // namespace mezzo::test
