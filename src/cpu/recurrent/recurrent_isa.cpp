// The loops of recurrent cells for one instruction set (isa_unit.h).
#include "cpu/isa/isa_unit.h"

#if MEZZO_ISA_FLAGS
#define MEZZO_ISA_NAMESPACE MEZZO_ISA_JOIN(isa)
#include "cpu/recurrent/recurrent_kernel.h"
#else
#include "cpu/recurrent/recurrent_loops.h"
#endif

namespace mezzo::cpu {

#if MEZZO_ISA_FLAGS
const RecurrentLoops MEZZO_ISA_JOIN(recurrent) = recurrent_loops;
#else
const RecurrentLoops MEZZO_ISA_JOIN(recurrent) = {};
#endif

}  // namespace mezzo::cpu
