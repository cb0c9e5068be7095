// Kernels for windows for one instruction set (isa_unit.h). With AVX-512 a panel is as wide as the channels
// of most networks divide: 64 columns. With AVX-512 BF16 one instruction multiplies and adds two channels.
#include "cpu/isa/isa_unit.h"

#if MEZZO_ISA_IS(portable)
#define MEZZO_MR 4
#define MEZZO_NR 8
#elif MEZZO_ISA_IS(avx2)
#define MEZZO_MR 6
#define MEZZO_NR 16
#else
#define MEZZO_MR 6
#define MEZZO_NR 64
#endif
#if MEZZO_ISA_IS(avx512_bf16)
#define MEZZO_DEPTH 2
#else
#define MEZZO_DEPTH 1
#endif

#if MEZZO_ISA_FLAGS
#include "cpu/conv/window_kernel.h"
#else
#include "cpu/conv/window_tables.h"
#endif

namespace mezzo::cpu {

#if MEZZO_ISA_FLAGS
const WindowKernels MEZZO_ISA_JOIN(windows) = window_table;
#else
const WindowKernels MEZZO_ISA_JOIN(windows) = {};
#endif

}  // namespace mezzo::cpu
