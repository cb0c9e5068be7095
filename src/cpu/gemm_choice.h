// Which kernels multiply: measured, not guessed from the name of the instruction set. bfloat16 pairs run at
// twice the speed of float32 on one processor and at half of it on another.
//
// Products are sorted into classes by the type of their operands, by transposition and by rough sizes. When a
// class is met for the first time, each kind of kernel that the processor has is compared with plain vectors
// on odd sizes, once in a process, then all are timed on one thread on a product of the class; plain vectors
// win a draw. Verdicts are kept in the user's cache folder, so that every process on the machine chooses
// alike.
#pragma once

#include <string>
#include <vector>

#include "cpu/isa_tables.h"

namespace mezzo::cpu {

// For one matrix of float16, bfloat16 and float32 in any mix. Those of the instruction set that was forced,
// or else the fastest of the processor's. 16-bit and float32 operands only.
const GemmKernels& chosen_gemm_kernels(const Gemm& g);

// A class that has been timed, here or by an earlier process.
struct GemmVerdict {
    std::string what;    // such as "bfloat16 NT 64 x 256 x 512"; sizes are the largest of the class, 256 and
                         // 512 stand for everything above
    std::string chosen;  // "vectors", "pairs" or "tiles"
    std::string times;   // microseconds of each
};

// What is known so far.
std::vector<GemmVerdict> gemm_verdicts();

// Times every class that this processor has a choice in, known or not, and keeps the verdicts: for a first
// time that was disturbed.
void measure_gemm_verdicts();

}  // namespace mezzo::cpu
