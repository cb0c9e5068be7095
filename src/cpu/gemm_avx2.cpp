// GEMM kernels for AVX2 + FMA + F16C: 12 of 16 registers accumulate.
// Built with flags of its own; without them the table is empty and gemm() takes a narrower one.
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define MEZZO_LANES 8
#define MEZZO_MR 6
#define MEZZO_NR 16
#define MEZZO_KC 256
#define MEZZO_MC 120
#define MEZZO_NC 256
#include "cpu/gemm_kernel.h"

namespace mezzo::cpu {

const GemmKernels gemm_avx2 = kernels;

}  // namespace mezzo::cpu

#else
#include "cpu/isa_tables.h"

namespace mezzo::cpu {

const GemmKernels gemm_avx2 = {};

}  // namespace mezzo::cpu

#endif
