// What a CUDA device did, piece by piece: kernels, copies and fills, those inside of graphs too.
#pragma once

#include <vector>

#include "core/device_trace.h"

// Starts the trace. Call it before the graphs that are to be traced are made. A traced process runs slower,
// also between the kernels of a graph. Throws mezzo::Error with the reason where it cannot be traced.
void start_gpu_trace();

// What the device has done since the last call, in the order of time. The device must have finished. Throws
// std::runtime_error if pieces were lost.
std::vector<mezzo::DeviceWork> take_gpu_trace();
