// The GEMM's AVX-512 tile shape without AVX-512: the compiler lowers the vectors, so every machine tests
// these edges.
#include "tests/cpu/gemm_wide_tile.h"

#define MEZZO_LANES 16
#define MEZZO_MR 8
#define MEZZO_NR 48
#define MEZZO_KC 1024
#define MEZZO_MC 128
#define MEZZO_NC 384
#include "cpu/gemm/epilogue_kernel.h"

const mezzo::cpu::GemmKernels& wide_tile_kernels() { return mezzo::cpu::kernels; }
