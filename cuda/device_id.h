// Which device it is, wherever it is.
#pragma once

#include <string>

namespace mezzo::cuda {

// Different for any two devices of any two machines, also for parts of one GPU (MIG); the same in all processes.
std::string device_id(int device);

}  // namespace mezzo::cuda
