// The loops of attention for AVX-512. Built with flags of its own; without them the table is empty and a
// narrower one is taken.
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define MEZZO_LANES 16
#include "cpu/attention_loops_kernel.h"

namespace mezzo::cpu {

const AttentionLoops attention_avx512 = attention_loops;

}  // namespace mezzo::cpu

#else
#include "cpu/attention_loops.h"

namespace mezzo::cpu {

const AttentionLoops attention_avx512 = {};

}  // namespace mezzo::cpu

#endif
