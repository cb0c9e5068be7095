// The inner loops for one instruction set (isa_unit.h).
#include "cpu/isa/isa_unit.h"

#if MEZZO_ISA_FLAGS
#define MEZZO_ISA_NAMESPACE MEZZO_ISA_JOIN(isa)
#include "cpu/elementwise/loops_kernel.h"
#else
#include "cpu/elementwise/loops.h"
#endif

namespace mezzo::cpu {

#if MEZZO_ISA_FLAGS
const Loops MEZZO_ISA_JOIN(loops) = make_loops();
#else
const Loops MEZZO_ISA_JOIN(loops) = {};
#endif

}  // namespace mezzo::cpu
