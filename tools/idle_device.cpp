#include "tools/idle_device.h"

#include <stdexcept>

void set_device_idle(bool idle) {
    if (idle) throw std::runtime_error("this device cannot idle; only the emulated one can");
}
