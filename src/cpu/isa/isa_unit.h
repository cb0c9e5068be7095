// Macros for the instruction set that this translation unit is compiled for. The build compiles each
// *_isa.cpp once per instruction set, with that set's flags and MEZZO_ISA_UNIT as its name: portable, avx2,
// avx512 or avx512_bf16. This header defines
//   MEZZO_ISA_FLAGS       whether the compiler was given the set's flags; otherwise tables are empty
//   MEZZO_LANES           floats per vector
//   MEZZO_ISA_IS(name)    whether this unit is for that set
//   MEZZO_ISA_WIDE_TYPES  whether its loops are compiled for float64 and integers, too. AVX-512's are not:
//                         most of them wait for memory, and AVX2's are used instead (loop_tables.h)
//   MEZZO_ISA_JOIN(name)  name_avx2 in the unit for avx2
#pragma once

#define MEZZO_JOIN_TEXT(a, b) a##b
#define MEZZO_JOIN(a, b) MEZZO_JOIN_TEXT(a, b)
#define MEZZO_ISA_JOIN(name) MEZZO_JOIN(name##_, MEZZO_ISA_UNIT)

#define MEZZO_NUMBER_portable 1
#define MEZZO_NUMBER_avx2 2
#define MEZZO_NUMBER_avx512 3
#define MEZZO_NUMBER_avx512_bf16 4
#define MEZZO_ISA_IS(name) (MEZZO_JOIN(MEZZO_NUMBER_, MEZZO_ISA_UNIT) == MEZZO_NUMBER_##name)

#if MEZZO_ISA_IS(portable)  // 16-byte vectors, which every x86-64 and ARMv8 has
#define MEZZO_LANES 4
#define MEZZO_ISA_FLAGS 1
#elif MEZZO_ISA_IS(avx2)
#define MEZZO_LANES 8
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define MEZZO_ISA_FLAGS 1
#endif
#elif MEZZO_ISA_IS(avx512) || MEZZO_ISA_IS(avx512_bf16)
#define MEZZO_LANES 16
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__) && \
    (MEZZO_ISA_IS(avx512) || defined(__AVX512BF16__))
#define MEZZO_ISA_FLAGS 1
#endif
#else
#error "MEZZO_ISA_UNIT names no instruction set"
#endif
#define MEZZO_ISA_WIDE_TYPES (!MEZZO_ISA_IS(avx512))
#ifndef MEZZO_ISA_FLAGS
#define MEZZO_ISA_FLAGS 0
#endif
