// Conversions for one instruction set (isa_unit.h).
#include "cpu/isa/isa_unit.h"

#if MEZZO_ISA_FLAGS
#include "cpu/elementwise/convert_kernel.h"
#else
#include "cpu/isa/isa_tables.h"
#endif

namespace mezzo::cpu {

#if MEZZO_ISA_FLAGS
const ConvertKernels MEZZO_ISA_JOIN(convert) = convert_kernels;
#else
const ConvertKernels MEZZO_ISA_JOIN(convert) = {};
#endif

}  // namespace mezzo::cpu
