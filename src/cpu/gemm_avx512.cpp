// GEMM kernels for AVX-512: 24 of 32 registers accumulate.
// Built with flags of its own; without them the table is empty and gemm() takes a narrower one.
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define MEZZO_LANES 16
#define MEZZO_MR 8
#define MEZZO_NR 48
#define MEZZO_KC 1024
#define MEZZO_MC 128
#define MEZZO_NC 384
#include "cpu/gemm_kernel.h"

namespace mezzo::cpu {

const GemmKernels gemm_avx512 = kernels;

}  // namespace mezzo::cpu

#else
#include "cpu/isa_tables.h"

namespace mezzo::cpu {

const GemmKernels gemm_avx512 = {};

}  // namespace mezzo::cpu

#endif
