// GEMM kernels for one instruction set (isa_unit.h). With AVX2, 12 of 16 registers accumulate, with AVX-512,
// 24 of 32, with NEON 16 of 32: with 24 of them gcc would have too few left for the operands. With AVX-512
// BF16 panels hold pairs of bfloat16 steps, and one instruction multiplies and adds two; its table has
// packing and that product only, the rest is gemm_avx512's.
#include "cpu/isa/isa_unit.h"

#if MEZZO_ISA_IS(portable)
#if defined(__aarch64__)
#define MEZZO_MR 8
#else
#define MEZZO_MR 4
#endif
#define MEZZO_NR 8
#define MEZZO_KC 256
#define MEZZO_MC 64
#define MEZZO_NC 256
#elif MEZZO_ISA_IS(avx2)
#define MEZZO_MR 6
#define MEZZO_NR 16
#define MEZZO_KC 256
#define MEZZO_MC 120
#define MEZZO_NC 256
#else
#define MEZZO_MR 8
#define MEZZO_NR 48
#define MEZZO_KC 1024
#define MEZZO_MC 128
#define MEZZO_NC 384
#endif

#if !MEZZO_ISA_FLAGS
#include "cpu/isa/isa_tables.h"
#elif MEZZO_ISA_IS(avx512_bf16)
#define MEZZO_DEPTH 2
#include "cpu/gemm/micro_kernel.h"
#include "cpu/gemm/pack.h"
#else
#include "cpu/gemm/epilogue_kernel.h"
#endif

namespace mezzo::cpu {

#if !MEZZO_ISA_FLAGS
const GemmKernels MEZZO_ISA_JOIN(gemm) = {};
#elif MEZZO_ISA_IS(avx512_bf16)
const GemmKernels MEZZO_ISA_JOIN(gemm) = {mr,       nr,       depth,    MEZZO_KC / depth, MEZZO_MC,
                                          MEZZO_NC, pack<mr>, pack<nr>, tile<>,           nullptr,
                                          nullptr,  nullptr,  lanes,    panel_sums<>};
#else
const GemmKernels MEZZO_ISA_JOIN(gemm) = kernels;
#endif

}  // namespace mezzo::cpu
