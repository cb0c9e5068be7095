// The kernels of attention for one instruction set (isa_unit.h).
#include "cpu/isa_unit.h"

#if MEZZO_ISA_IS(portable)
#define MEZZO_MR 4
#define MEZZO_NR 8
#elif MEZZO_ISA_IS(avx2)
#define MEZZO_MR 6
#define MEZZO_NR 16
#else
#define MEZZO_MR 8
#define MEZZO_NR 32
#endif

#if MEZZO_ISA_FLAGS
#include "cpu/attention_kernel.h"
#else
#include "cpu/attention_tables.h"
#endif

namespace mezzo::cpu {

#if MEZZO_ISA_FLAGS
const AttentionKernels MEZZO_ISA_JOIN(attention) = attention_kernels;
#else
const AttentionKernels MEZZO_ISA_JOIN(attention) = {};
#endif

}  // namespace mezzo::cpu
