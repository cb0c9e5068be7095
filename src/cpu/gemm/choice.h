// Choice of the kernels that multiply, by measurement instead of by the name of the instruction set: bfloat16
// pairs run at twice the speed of float32 on one processor and at half of it on another.
//
// Products are sorted into classes by the type of their operands, by transposition and by rough sizes. When a
// class occurs for the first time, all kinds of kernels that the processor has are timed on one thread on a
// product of the class; plain vectors win a draw. Before a kind is timed or used, once for each build and
// processor, its results on odd sizes are compared with those of plain vectors. The choices are stored in the
// user's cache folder (kernels/choice_file.h), so that every process on the machine chooses alike.
#pragma once

#include <string>
#include <vector>

#include "cpu/isa/isa_tables.h"

namespace mezzo::cpu {

// The kernels for one product of float16, bfloat16 and float32 operands in any mix: those of the instruction
// set that was forced, or else the fastest that the processor has.
const GemmKernels& chosen_gemm_kernels(const Gemm& g);

// A class that has been timed, here or by an earlier process.
struct GemmChoice {
    std::string what;    // such as "bfloat16 NT 64 x 256 x 512"; sizes are the largest of the class, 256 and
                         // 512 stand for everything above
    std::string chosen;  // "vectors", "pairs" or "tiles"
    std::string times;   // microseconds of each
};

// The classes that have been timed so far.
std::vector<GemmChoice> gemm_choices();

// Times every class that this processor has a choice in, known or not, and stores the results. For users
// whose first measurement was disturbed.
void measure_gemm_choices();

}  // namespace mezzo::cpu
