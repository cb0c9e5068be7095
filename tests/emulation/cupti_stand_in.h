// A stand-in for libcupti.so.13: it keeps the records of what the emulated device does, as far as their kinds
// are enabled.
#pragma once

#include <cstddef>
#include <cstdint>

struct CuptiStandIn {
    int refused = 0;  // what cuptiActivityEnable answers
    std::size_t records_per_buffer = 3;
    std::size_t dropped = 0;  // what the next buffer reports as lost
    std::size_t enabled = 0;  // kinds now
    std::size_t inside = 0;   // external ids that the calling thread has entered
    std::int64_t ahead = 0;   // of the host's clock, in nanoseconds
};

// Exports of the library in addition to CUPTI's functions. `work`: a call of the CUDA API by this thread
// queues a kernel, a copy or a fill that ends so many nanoseconds after now.
using CuptiStandInState = CuptiStandIn* (*)();
using CuptiStandInWork = void (*)(int kind, const char* name, int copy_kind, std::uint64_t nanoseconds);
