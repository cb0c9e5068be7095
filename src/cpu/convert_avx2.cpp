// Conversions for AVX2 + F16C.
// Built with flags of its own; without them the table is empty and convert() takes a narrower one.
#if defined(__AVX2__) && defined(__F16C__)
#define MEZZO_LANES 8
#include "cpu/convert_kernel.h"

namespace mezzo::cpu {

const ConvertKernels convert_avx2 = convert_kernels;

}  // namespace mezzo::cpu

#else
#include "cpu/isa_tables.h"

namespace mezzo::cpu {

const ConvertKernels convert_avx2 = {};

}  // namespace mezzo::cpu

#endif
