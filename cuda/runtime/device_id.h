// Identifiers of devices that are unique across machines.
#pragma once

#include <string>

namespace mezzo::cuda {

// Returns a text that differs for any two devices of any two machines, also for parts of one GPU (MIG), and
// is the same in all processes.
std::string device_id(int device);

}  // namespace mezzo::cuda
