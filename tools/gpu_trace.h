// What a CUDA device did, piece by piece: kernels, copies and fills, those inside of graphs too.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

// Times in nanoseconds, from an arbitrary start that all pieces share.
struct DeviceWork {
    std::string name;
    std::uint64_t begin = 0, end = 0;
};

// Starts the trace. Call it before the graphs that are to be traced are made. A traced process runs slower,
// also between the kernels of a graph. Throws std::runtime_error with the reason where it cannot be traced.
void start_gpu_trace();

// What the device has done since the last call, in the order of time. The device must have finished. Throws
// std::runtime_error if pieces were lost.
std::vector<DeviceWork> take_gpu_trace();
