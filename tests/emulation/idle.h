// An emulated device that does nothing: what is left is the host's work, which tests and tools count and
// time.
#pragma once

namespace mezzo::emulation {

// While it is true, kernels and products are counted, but not run. Results are undefined meanwhile.
inline bool idle = false;

}  // namespace mezzo::emulation
