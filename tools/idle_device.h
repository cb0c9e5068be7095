// A device that does nothing, for programs that measure the host's work alone.
#pragma once

// Whether the emulated device leaves out what is queued on it from now on. Results are undefined meanwhile. A real device
// cannot do that: there it throws std::runtime_error.
void set_device_idle(bool idle);
