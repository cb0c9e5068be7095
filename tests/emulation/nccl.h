// A stand-in for NCCL between the threads of one process, each of which is a rank with an emulated device of
// its own. It is stricter than NCCL: calls that differ, captures on some ranks only, uses after the end and
// graphs that outlive their communicator are reported, where NCCL hangs or corrupts memory. Planted faults
// make calls fail.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace mezzo::emulation {

enum class NcclFault {
    none,
    refused,  // the call returns an error
    error,    // the operation never ends, and an asynchronous error is there to be asked for
    lost,     // the rank never comes to the operation, and nobody says anything
};

struct NcclOptions {
    int version = 22809;
    int other_version = 0;        // if not 0: the version that every second caller gets
    bool changing_order = false;  // sums begin with another rank in each call
    NcclFault fault = NcclFault::none;
    int fault_rank = 0;
    std::uint64_t fault_call = 0;  // of that rank, from 1 on
};
inline NcclOptions nccl_options;                   // to be changed while no rank runs
inline std::atomic<bool> nccl_abort_hangs{false};  // until it is false again

struct NcclReport {
    int communicators = 0;         // that have not been ended
    int aborts = 0;                // communicators that were aborted
    std::uint64_t operations = 0;  // done, counted once for all ranks
    std::string violations;        // of the rules; "" if there were none
};
NcclReport nccl_report();
void reset_nccl_report();
bool nccl_was_opened();  // by this process

// Has the shared object of nccl_forward.cpp, which is at this path, forward to the stand-in, and names it in
// MEZZO_NCCL.
void use_nccl_stand_in(const char* path);

}  // namespace mezzo::emulation
