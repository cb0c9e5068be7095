// The loops of attention for portable instructions: 16-byte vectors, which every x86-64 and ARMv8 has.
#define MEZZO_LANES 4
#include "cpu/attention_loops_kernel.h"

namespace mezzo::cpu {

const AttentionLoops attention_portable = attention_loops;

}  // namespace mezzo::cpu
