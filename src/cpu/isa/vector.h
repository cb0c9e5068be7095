// Float vectors of any width on compiler vector extensions, with loads and stores that convert 16-bit types.
// For translation units that are built for one instruction set. Everything has internal linkage: of equal
// inline functions the linker keeps any one, and code for other processors might then run one with wide
// instructions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "mezzo/dtype.h"

#if defined(__F16C__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

// Vectors wider than the target's registers are fine here: every function that takes one is inlined.
#pragma GCC diagnostic ignored "-Wpsabi"

#define MEZZO_INLINE inline __attribute__((always_inline))
// One copy of a function, for all arguments.
#ifdef __clang__
#define MEZZO_SHARED __attribute__((noinline))
#else
#define MEZZO_SHARED __attribute__((noipa))
#endif

namespace mezzo::cpu {
namespace {

// N floats, and N integers.
template <int N> struct Vectors {
    typedef float F __attribute__((vector_size(N * 4)));
    typedef std::int32_t I __attribute__((vector_size(N * 4)));
    typedef std::uint32_t U __attribute__((vector_size(N * 4)));
    typedef std::uint16_t H __attribute__((vector_size(N * 2)));
};
template <int N> using FloatN = typename Vectors<N>::F;
template <int N> using IntN = typename Vectors<N>::I;
template <int N> using UintN = typename Vectors<N>::U;
template <int N> using HalfN = typename Vectors<N>::H;

// mask ? a : b for lanes that are all ones or all zeros. With mask registers the operator is two
// instructions; without them it would compare the mask with zero, which this avoids.
template <int N> MEZZO_INLINE UintN<N> select(IntN<N> mask, UintN<N> a, UintN<N> b) {
#if defined(__AVX512F__)
    if constexpr (N == 16) return mask ? a : b;
#endif
    return ((UintN<N>)mask & a) | (~(UintN<N>)mask & b);
}
template <int N> MEZZO_INLINE FloatN<N> select(IntN<N> mask, FloatN<N> a, FloatN<N> b) {
    return (FloatN<N>)select<N>(mask, (UintN<N>)a, (UintN<N>)b);
}

template <int N> MEZZO_INLINE FloatN<N> broadcast(float x) { return x - FloatN<N>{}; }

template <int N> MEZZO_INLINE FloatN<N> load(const float* p) {
    FloatN<N> v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
}
template <int N> MEZZO_INLINE void store(float* p, FloatN<N> v) { __builtin_memcpy(p, &v, sizeof v); }
// Stores a cache line past the caches, if there are vectors of that size. Call fence() before another thread
// is notified.
template <int N> MEZZO_INLINE void stream(float* p, FloatN<N> v) {
#if defined(__AVX512F__)
    if constexpr (N == 16) return _mm512_stream_ps(p, (__m512)v);
#endif
    store<N>(p, v);
}
MEZZO_INLINE void fence() {
#if defined(__AVX512F__)
    _mm_sfence();
#endif
}

// Widens elements; GCC's generic code for this and for narrow() takes several shuffles instead of one
// instruction.
template <int N> MEZZO_INLINE UintN<N> widen(HalfN<N> h) {
#if defined(__AVX512F__)
    if constexpr (N == 16) return (UintN<N>)_mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)h);
#endif
#if defined(__AVX2__)
    if constexpr (N == 8) return (UintN<N>)_mm256_cvtepu16_epi32((__m128i)h);
#endif
#if defined(__aarch64__)
    if constexpr (N == 4) return (UintN<N>)vmovl_u16((uint16x4_t)h);
#endif
    return __builtin_convertvector(h, UintN<N>);
}
// Narrows elements u < 2^16.
template <int N> MEZZO_INLINE HalfN<N> narrow(UintN<N> u) {
#if defined(__AVX512F__)
    if constexpr (N == 16) return (HalfN<N>)_mm512_maskz_cvtepi32_epi16(0xffff, (__m512i)u);
#endif
#if defined(__AVX2__)
    if constexpr (N == 8) {
        const __m256i v = (__m256i)u;
        return (HalfN<N>)_mm_packus_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    }
#endif
#if defined(__aarch64__)
    if constexpr (N == 4) return (HalfN<N>)vmovn_u32((uint32x4_t)u);
#endif
    return __builtin_convertvector(u, HalfN<N>);
}

template <int N> MEZZO_INLINE FloatN<N> load(const bfloat16_t* p) {
#if defined(__AVX2__)
    if constexpr (N == 4)
        return (FloatN<N>)_mm_slli_epi32(_mm_cvtepu16_epi32(_mm_loadl_epi64((const __m128i*)p)), 16);
#endif
    HalfN<N> h;
    __builtin_memcpy(&h, p, sizeof h);
    return (FloatN<N>)(widen<N>(h) << 16);
}

// Round to nearest even; NaN becomes quiet and keeps the upper payload bits.
template <int N> MEZZO_INLINE void store(bfloat16_t* p, FloatN<N> v) {
    const UintN<N> u = (UintN<N>)v;
    const UintN<N> r = select<N>(v != v, u >> 16 | 0x40u, (u + 0x7fffu + (u >> 16 & 1u)) >> 16);
    const HalfN<N> h = narrow<N>(r);
    __builtin_memcpy(static_cast<void*>(p), &h, sizeof h);
}

// binary16 -> binary32 without instructions for it: shifts the bits and rescales the exponent by 2^112, which
// also normalises subnormals; infinities and NaNs get the all-ones exponent.
template <int N> MEZZO_INLINE FloatN<N> widen_half(HalfN<N> h) {
    const UintN<N> u = widen<N>(h);
    const UintN<N> magnitude = (u & 0x7fffu) << 13;
    const UintN<N> finite = (UintN<N>)((FloatN<N>)magnitude * 0x1p112f);
    const IntN<N> special = (IntN<N>)magnitude >= 0x0f800000;
    return (FloatN<N>)((u & 0x8000u) << 16 | select<N>(special, magnitude | 0x7f800000u, finite));
}

// binary32 -> binary16, round to nearest even: the four cases of float16_t's constructor, chosen by masks.
template <int N> MEZZO_INLINE HalfN<N> narrow_half(FloatN<N> v) {
    const UintN<N> u = (UintN<N>)v;
    const UintN<N> magnitude = u & 0x7fffffffu;
    const UintN<N> normal = ((magnitude + 0xfffu + (magnitude >> 13 & 1u)) - 0x38000000u) >> 13;
    const UintN<N> tiny = (UintN<N>)((FloatN<N>)magnitude + 0.5f) - 0x3f000000u;
    const UintN<N> quiet = (magnitude >> 13 & 0x1ffu) | 0x7e00u;
    const UintN<N> infinite = UintN<N>{} + 0x7c00u;
    UintN<N> r = select<N>((IntN<N>)magnitude < 0x38800000, tiny, normal);
    r = select<N>((IntN<N>)magnitude >= 0x477ff000, infinite, r);
    r = select<N>((IntN<N>)magnitude > 0x7f800000, quiet, r);
    return narrow<N>(r | (u >> 16 & 0x8000u));
}

template <int N> MEZZO_INLINE FloatN<N> load(const float16_t* p) {
#if defined(__AVX512F__)
    if constexpr (N == 16)
        return (FloatN<N>)_mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256((const __m256i*)p));
#endif
#if defined(__F16C__)
    if constexpr (N == 8) return (FloatN<N>)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
    if constexpr (N == 4) return (FloatN<N>)_mm_cvtph_ps(_mm_loadl_epi64((const __m128i*)p));
#endif
    HalfN<N> h;
    __builtin_memcpy(&h, p, sizeof h);
#if defined(__aarch64__)
    if constexpr (N == 4) return (FloatN<N>)vcvt_f32_f16((float16x4_t)h);
#endif
    return widen_half<N>(h);
}

template <int N> MEZZO_INLINE void store(float16_t* p, FloatN<N> v) {
#if defined(__AVX512F__)
    if constexpr (N == 16) {
        _mm256_storeu_si256((__m256i*)p, _mm512_maskz_cvtps_ph(0xffff, (__m512)v, _MM_FROUND_TO_NEAREST_INT));
        return;
    }
#endif
#if defined(__F16C__)
    if constexpr (N == 8) {
        _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT));
        return;
    }
#endif
#if defined(__aarch64__)
    if constexpr (N == 4) {
        const float16x4_t h = vcvt_f16_f32((float32x4_t)v);
        __builtin_memcpy(static_cast<void*>(p), &h, sizeof h);
        return;
    }
#endif
    const HalfN<N> h = narrow_half<N>(v);
    __builtin_memcpy(static_cast<void*>(p), &h, sizeof h);
}

// load_first() and store_first() without masked instructions.
template <int N, class T> MEZZO_SHARED FloatN<N> load_part(const T* p, std::int64_t count) {
    alignas(N * sizeof(T)) std::uint8_t bytes[N * sizeof(T)] = {};
    __builtin_memcpy(bytes, p, static_cast<std::size_t>(count) * sizeof(T));
    return load<N>(reinterpret_cast<const T*>(bytes));
}
template <int N, class T> MEZZO_SHARED void store_part(T* p, FloatN<N> v, std::int64_t count) {
    alignas(N * sizeof(T)) std::uint8_t bytes[N * sizeof(T)];
    store<N>(reinterpret_cast<T*>(bytes), v);
    __builtin_memcpy(static_cast<void*>(p), bytes, static_cast<std::size_t>(count) * sizeof(T));
}

// Loads and stores the first `count` < N elements and accesses no memory behind them; the loaded rest is
// zero.
template <int N, class T> MEZZO_INLINE FloatN<N> load_first(const T* p, std::int64_t count) {
#if defined(__AVX512BW__) && defined(__AVX512VL__)
    if constexpr (N == 16 && sizeof(T) == 4)
        return (FloatN<N>)_mm512_maskz_loadu_ps((__mmask16)((1u << count) - 1), p);
    if constexpr (N == 16 && sizeof(T) == 2) {
        const __m256i bits = _mm256_maskz_loadu_epi16((__mmask16)((1u << count) - 1), p);
        alignas(32) T part[N];
        _mm256_store_si256((__m256i*)part, bits);
        return load<N>(part);
    }
#endif
    return load_part<N>(p, count);
}
template <int N, class T> MEZZO_INLINE void store_first(T* p, FloatN<N> v, std::int64_t count) {
#if defined(__AVX512BW__) && defined(__AVX512VL__)
    if constexpr (N == 16 && sizeof(T) == 4)
        return _mm512_mask_storeu_ps(p, (__mmask16)((1u << count) - 1), (__m512)v);
    if constexpr (N == 16 && sizeof(T) == 2) {
        alignas(32) T all[N];
        store<N>(all, v);
        return _mm256_mask_storeu_epi16(p, (__mmask16)((1u << count) - 1), _mm256_load_si256((__m256i*)all));
    }
#endif
    store_part<N>(p, v, count);
}

}  // namespace
}  // namespace mezzo::cpu
