// Traces the work of a CUDA device: kernels, copies and fills, including those in graphs.
#pragma once

#include <vector>

#include "core/device_trace.h"

// Starts the trace. Graphs to be traced must be made afterwards. A traced process runs slower, also between
// the kernels of a graph. Throws mezzo::Error with the reason if tracing is impossible.
void start_gpu_trace();

// Returns the device's work since the last call, in time order. The device must have finished. Throws
// std::runtime_error if pieces were lost.
std::vector<mezzo::DeviceWork> take_gpu_trace();
