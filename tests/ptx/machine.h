// Interpreter of PTX: a grid's blocks run one after the other, warps of 32 lanes in lockstep. Lanes that have
// parted meet again because those furthest behind run first. Checked at every access: device memory against
// the allocations, shared memory against its variables, alignment, bytes that nothing has written, and races
// in shared memory. docs/internals/testing.md says what a GPU does that this does not.
#pragma once

#include <functional>

#include "tests/ptx/kernel.h"

namespace mezzo::ptx {

struct Dim {
    unsigned x = 1, y = 1, z = 1;
    unsigned count() const { return x * y * z; }
};

// Read from the environment by runtime.cpp.
struct Options {
    unsigned schedule = 0;  // of warps and blocks: 0 ascending, 1 descending, else a seed, with preemption
    unsigned drop_barrier = 0;    // every kernel loses its n-th bar.sync; 0: none
    unsigned inexact = 0;         // not 0: approximate functions are off by up to one ulp
    bool truncated_sums = false;  // mma.sync cuts sums off as hardware does
    unsigned capability = 80;     // of the device, e.g. 86
    unsigned multiprocessors = 1;
    std::size_t device_memory = std::size_t(4) << 30;
    std::uint64_t instruction_limit = std::uint64_t(4) << 30;  // of warps, for one launch
};
extern Options options;

// Throws Fault where the kernel can't go on. Other findings are reports.
void run(const Kernel& kernel, Dim grid, Dim block, std::size_t dynamic_shared,
         const std::vector<char>& parameters);

struct Totals {
    std::uint64_t reports = 0;  // faults included
    std::uint64_t warp_instructions = 0, lane_instructions = 0;
};
extern Totals totals;

// Reports a finding, each (kernel, instruction, kind) once. `instruction` may be null.
void report(const Kernel& kernel, const Instruction* instruction, const char* kind, const std::string& what);

// Receives reports; the default writes them to stderr.
using ReportSink = std::function<void(const std::string& text)>;
// Returns the sink that was there before.
ReportSink set_report_sink(ReportSink sink);

}  // namespace mezzo::ptx
