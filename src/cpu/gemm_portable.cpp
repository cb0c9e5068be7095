// GEMM kernels for portable instructions: 16-byte vectors, which every x86-64 and ARMv8 has.
#define MEZZO_LANES 4
#define MEZZO_MR 4
#define MEZZO_NR 8
#define MEZZO_KC 256
#define MEZZO_MC 64
#define MEZZO_NC 256
#include "cpu/gemm_kernel.h"

namespace mezzo::cpu {

const GemmKernels gemm_portable = kernels;

}  // namespace mezzo::cpu
