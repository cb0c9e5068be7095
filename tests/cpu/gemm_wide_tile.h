// The kernels with AVX-512's tile shape (14 x 32, 64-byte vectors), compiled for the instruction set of the
// tests.
#pragma once

namespace mezzo::cpu {
struct GemmKernels;
}

const mezzo::cpu::GemmKernels& wide_tile_kernels();
