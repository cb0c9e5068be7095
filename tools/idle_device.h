// Turns off the emulated device's work, for programs that measure the host alone.
#pragma once

// Sets whether the emulated device skips queued work; results are then undefined. Throws
// std::runtime_error on a real device, which cannot do that.
void set_device_idle(bool idle);
