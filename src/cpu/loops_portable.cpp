// The inner loops for any processor.
#define MEZZO_ISA_NAMESPACE isa_portable
#include "loops_kernel.h"

namespace mezzo::cpu {

const Loops loops_portable = make_loops();

}  // namespace mezzo::cpu
