// Conversions for portable instructions.
#define MEZZO_LANES 4
#include "cpu/convert_kernel.h"

namespace mezzo::cpu {

const ConvertKernels convert_portable = convert_kernels;

}  // namespace mezzo::cpu
