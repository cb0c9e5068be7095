// Conversions for AVX-512.
// Built with flags of its own; without them the table is empty and convert() takes a narrower one.
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define MEZZO_LANES 16
#include "cpu/convert_kernel.h"

namespace mezzo::cpu {

const ConvertKernels convert_avx512 = convert_kernels;

}  // namespace mezzo::cpu

#else
#include "cpu/isa_tables.h"

namespace mezzo::cpu {

const ConvertKernels convert_avx512 = {};

}  // namespace mezzo::cpu

#endif
