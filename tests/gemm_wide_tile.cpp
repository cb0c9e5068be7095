// AVX-512's tile shape without AVX-512: the compiler lowers the vectors, so every machine tests these edges.
#include "gemm_wide_tile.h"

#define MEZZO_LANES 16
#define MEZZO_MR 14
#define MEZZO_NR 32
#define MEZZO_KC 384
#define MEZZO_MC 112
#define MEZZO_NC 512
#include "cpu/gemm_kernel.h"

const mezzo::cpu::GemmKernels& wide_tile_kernels() { return mezzo::cpu::kernels; }
