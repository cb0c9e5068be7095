// Which instruction set the CPU kernels use: found once at run time, or forced by a test.
#pragma once

#include <cstdint>

namespace mezzo::cpu {

// avx2 stands for AVX2 + FMA + F16C; avx512 for AVX-512 F + BW + DQ + VL on top of those; avx512_bf16 for
// AVX-512 BF16 on top of all, which multiplies bfloat16 matrices in pairs of steps.
enum class Isa : std::uint8_t { portable, avx2, avx512, avx512_bf16 };

// The widest instruction set that both the processor (cpuid) and the operating system (xgetbv) support.
Isa best_isa();

// The instruction set in use: best_isa(), unless MEZZO_ISA=portable|avx2|avx512|avx512_bf16 (read once) or
// force_isa() says otherwise.
Isa active_isa();

// Makes every later call use `isa`; throws Error if the processor lacks it.
void force_isa(Isa isa);

// "portable", "avx2", "avx512" or "avx512_bf16".
const char* name(Isa isa);

}  // namespace mezzo::cpu
