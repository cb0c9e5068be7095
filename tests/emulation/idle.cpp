// tools/idle_device.h on the emulated device: linked instead of tools/idle_device.cpp.
#include "tests/emulation/idle.h"

#include "tools/idle_device.h"

void set_device_idle(bool idle) { mezzo::emulation::idle = idle; }
