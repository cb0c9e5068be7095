// The kernels of attention for AVX-512. Built with flags of its own; without them the table is empty and a
// narrower one is taken.
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define MEZZO_LANES 16
#define MEZZO_MR 8
#define MEZZO_NR 32
#define MEZZO_KC 256
#define MEZZO_MC 128
#define MEZZO_NC 256
#include "cpu/attention_kernel.h"

namespace mezzo::cpu {

const AttentionKernels attention_avx512 = attention_kernels;

}  // namespace mezzo::cpu

#else
#include "cpu/attention_tables.h"

namespace mezzo::cpu {

const AttentionKernels attention_avx512 = {};

}  // namespace mezzo::cpu

#endif
