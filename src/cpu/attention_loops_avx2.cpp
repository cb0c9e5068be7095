// The loops of attention for AVX2 + FMA + F16C. Built with flags of its own; without them the table is empty
// and a narrower one is taken.
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define MEZZO_LANES 8
#include "cpu/attention_loops_kernel.h"

namespace mezzo::cpu {

const AttentionLoops attention_avx2 = attention_loops;

}  // namespace mezzo::cpu

#else
#include "cpu/attention_loops.h"

namespace mezzo::cpu {

const AttentionLoops attention_avx2 = {};

}  // namespace mezzo::cpu

#endif
