// The kernels of attention for one instruction set (isa_unit.h).
#include "cpu/isa/isa_unit.h"

// The register tile of AVX-512: few dims and lengths are multiples of GEMM's 48 columns.
#define MEZZO_MR 8
#define MEZZO_NR 32

#if MEZZO_ISA_FLAGS
#include "cpu/attention/attention_kernel.h"
#else
#include "cpu/attention/attention_tables.h"
#endif

namespace mezzo::cpu {

#if MEZZO_ISA_FLAGS
const AttentionKernels MEZZO_ISA_JOIN(attention) = attention_kernels;
#else
const AttentionKernels MEZZO_ISA_JOIN(attention) = {};
#endif

}  // namespace mezzo::cpu
