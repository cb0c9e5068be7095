// The kernels of attention for portable instructions: 16-byte vectors, which every x86-64 and ARMv8 has.
#define MEZZO_LANES 4
#define MEZZO_MR 4
#define MEZZO_NR 8
#define MEZZO_KC 256
#define MEZZO_MC 64
#define MEZZO_NC 256
#include "cpu/attention_kernel.h"

namespace mezzo::cpu {

const AttentionKernels attention_portable = attention_kernels;

}  // namespace mezzo::cpu
