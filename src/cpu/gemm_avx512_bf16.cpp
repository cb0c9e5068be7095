// The bfloat16 product for AVX-512 BF16: panels hold pairs of steps, and one instruction multiplies and adds
// two. The rest of the table is gemm_avx512's. Built with flags of its own; without them the table is empty
// and gemm() takes a narrower one.
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512BF16__)
#define MEZZO_LANES 16
#define MEZZO_DEPTH 2
#define MEZZO_MR 8
#define MEZZO_NR 48
#include "cpu/gemm_pack.h"
#include "cpu/gemm_tile.h"

namespace mezzo::cpu {

const GemmKernels gemm_avx512_bf16 = {mr,       nr,       depth,  512,     128,     384,
                                      pack<mr>, pack<nr>, tile<>, nullptr, nullptr, lanes};

}  // namespace mezzo::cpu

#else
#include "cpu/isa_tables.h"

namespace mezzo::cpu {

const GemmKernels gemm_avx512_bf16 = {};

}  // namespace mezzo::cpu

#endif
