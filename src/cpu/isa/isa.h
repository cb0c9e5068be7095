// Instruction set of the CPU kernels: detected once at run time, or forced by a test.
#pragma once

#include <cstdint>

namespace mezzo::cpu {

// avx2 stands for AVX2 + FMA + F16C; avx512 for AVX-512 F + BW + DQ + VL on top of those; avx512_bf16 for
// AVX-512 BF16 on top of all, which multiplies bfloat16 matrices in pairs of steps; amx for AMX TILE + BF16
// on top of that, which multiplies tiles of bfloat16.
enum class Isa : std::uint8_t { portable, avx2, avx512, avx512_bf16, amx };
inline constexpr Isa all_isas[] = {Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512_bf16, Isa::amx};

// The widest instruction set that both the processor (cpuid) and the operating system (xgetbv) support.
Isa best_isa();

// The instruction set in use: the one set by force_isa() or by MEZZO_ISA=portable|avx2|avx512|avx512_bf16|amx
// (read at the first call), otherwise best_isa().
Isa active_isa();

// Whether MEZZO_ISA or force_isa() named the instruction set. If not, matrix products use the fastest kernels
// that the processor has, by measurement (gemm/choice.h).
bool isa_is_forced();

// Makes every later call use `isa`; throws Error(value) if the processor lacks it.
void force_isa(Isa isa);

// Undoes force_isa(): reads MEZZO_ISA again.
void release_isa();

// "portable", "avx2", "avx512", "avx512_bf16" or "amx".
const char* name(Isa isa);

}  // namespace mezzo::cpu
