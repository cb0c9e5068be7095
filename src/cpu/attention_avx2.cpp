// The kernels of attention for AVX2 + FMA + F16C. Built with flags of its own; without them the table is
// empty and a narrower one is taken.
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define MEZZO_LANES 8
#define MEZZO_MR 6
#define MEZZO_NR 16
#define MEZZO_KC 256
#define MEZZO_MC 96
#define MEZZO_NC 256
#include "cpu/attention_kernel.h"

namespace mezzo::cpu {

const AttentionKernels attention_avx2 = attention_kernels;

}  // namespace mezzo::cpu

#else
#include "cpu/attention_tables.h"

namespace mezzo::cpu {

const AttentionKernels attention_avx2 = {};

}  // namespace mezzo::cpu

#endif
