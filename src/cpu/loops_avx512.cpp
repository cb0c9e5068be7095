// The inner loops for AVX512. Built with flags of its own; without them the table is empty and a narrower one
// is taken.
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define MEZZO_ISA_NAMESPACE isa_avx512
#include "loops_kernel.h"

namespace mezzo::cpu {

const Loops loops_avx512 = make_loops();

}  // namespace mezzo::cpu

#else
#include "loops.h"

namespace mezzo::cpu {

const Loops loops_avx512 = {};

}  // namespace mezzo::cpu

#endif
