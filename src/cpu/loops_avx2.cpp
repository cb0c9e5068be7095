// The inner loops for AVX2. Built with flags of its own; without them the table is empty and a narrower one
// is taken.
#if defined(__AVX2__) && defined(__FMA__)
#define MEZZO_ISA_NAMESPACE isa_avx2
#include "loops_kernel.h"

namespace mezzo::cpu {

const Loops loops_avx2 = make_loops();

}  // namespace mezzo::cpu

#else
#include "loops.h"

namespace mezzo::cpu {

const Loops loops_avx2 = {};

}  // namespace mezzo::cpu

#endif
