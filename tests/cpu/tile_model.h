// The GEMM on a model of AMX tiles in C++, for machines without AMX: gemm_amx.cpp's source, compiled for any
// processor.
#pragma once

#include "cpu/amx/tile_tables.h"

// The portable kernels with the model's tiles.
const mezzo::cpu::GemmKernels& tile_model_kernels();
