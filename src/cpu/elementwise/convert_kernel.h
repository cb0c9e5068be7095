// Conversions among float16, bfloat16 and float32, from small integers to float32, and from float32 to
// float8, one source for all instruction sets. The including file defines MEZZO_LANES. Everything has
// internal linkage, for the reason in vector.h.
#pragma once

#include "core/round_to_odd.h"
#include "cpu/isa/isa_tables.h"
#include "cpu/isa/vector.h"

namespace mezzo::cpu {
namespace {

template <class From, class To> void convert_floats(const void* src, void* dst, std::int64_t n) {
    constexpr int lanes = MEZZO_LANES;
    constexpr std::int64_t ahead = 4096;  // bytes: callers convert a row or a chunk, compute, and go on
    const From* from = static_cast<const From*>(src);
    To* to = static_cast<To*>(dst);
    std::int64_t i = 0;
    for (; i + 2 * lanes <= n; i += 2 * lanes) {
        __builtin_prefetch(reinterpret_cast<const char*>(from + i) + ahead);
        const FloatN<lanes> a = load<lanes>(from + i), b = load<lanes>(from + i + lanes);
        store<lanes>(to + i, a);
        store<lanes>(to + i + lanes, b);
    }
    for (; i + 4 <= n; i += 4) store<4>(to + i, load<4>(from + i));
    if (i < n) store_first<4>(to + i, load_first<4>(from + i, n - i), n - i);
}

// f of each element. Reads and writes bytes, so that neither side needs alignment.
template <class From, class F>
MEZZO_INLINE void convert_each(const void* src, void* dst, std::int64_t n, const F f) {
    const char* __restrict const from = static_cast<const char*>(src);
    char* __restrict const to = static_cast<char*>(dst);
    for (std::int64_t i = 0; i < n; ++i) {
        From x;
        __builtin_memcpy(&x, from + i * std::int64_t(sizeof x), sizeof x);
        const auto y = f(x);
        __builtin_memcpy(to + i * std::int64_t(sizeof y), &y, sizeof y);
    }
}
template <class From, class To> void convert_numbers(const void* src, void* dst, std::int64_t n) {
    convert_each<From>(src, dst, n, [](From x) { return To(x); });
}
void convert_to_odd(const void* src, void* dst, std::int64_t n) {
    convert_each<double>(src, dst, n, [](double x) { return round_to_odd(x); });
}
void booleans_to_float(const void* src, void* dst, std::int64_t n) {
    convert_each<std::uint8_t>(src, dst, n, [](std::uint8_t x) { return x != 0 ? 1.0f : 0.0f; });
}

// detail::rounded_code() of dtype.h.
template <int mantissa, int bias>
MEZZO_INLINE UintN<MEZZO_LANES> rounded_codes(UintN<MEZZO_LANES> magnitude) {
    constexpr int N = MEZZO_LANES, cut = 23 - mantissa;
    constexpr std::uint32_t least_normal = std::uint32_t(128 - bias) << 23,
                            shift = std::uint32_t(151 - bias - mantissa) << 23;
    const UintN<N> shifts = UintN<N>{} + shift, half = (magnitude >> cut & 1u) + ((1u << (cut - 1)) - 1);
    const UintN<N> normal = (magnitude + half - (std::uint32_t(127 - bias) << 23)) >> cut;
    const UintN<N> subnormal = (UintN<N>)((FloatN<N>)magnitude + (FloatN<N>)shifts) - shifts;
    return select<N>((IntN<N>)magnitude < std::int32_t(least_normal), subnormal, normal);
}

// The codes of the three types of dtype.h, the sign apart.
struct E4M3 {
    static MEZZO_INLINE UintN<MEZZO_LANES> codes(UintN<MEZZO_LANES> magnitude) {
        constexpr int N = MEZZO_LANES;
        const UintN<N> code = rounded_codes<3, 7>(magnitude), most = UintN<N>{} + 0x7eu;
        const UintN<N> finite = select<N>((IntN<N>)code < 0x7e, code, most);
        return select<N>((IntN<N>)magnitude > 0x7f800000, most + 1u, finite);
    }
    static constexpr std::uint32_t sign = 0x80;
};
struct E5M2 {
    static MEZZO_INLINE UintN<MEZZO_LANES> codes(UintN<MEZZO_LANES> magnitude) {
        constexpr int N = MEZZO_LANES;
        const UintN<N> code = rounded_codes<2, 15>(magnitude), infinity = UintN<N>{} + 0x7cu;
        const UintN<N> bounded = select<N>((IntN<N>)code < 0x7c, code, infinity);
        return select<N>((IntN<N>)magnitude > 0x7f800000, infinity + 3u, bounded);
    }
    static constexpr std::uint32_t sign = 0x80;
};
struct E8M0 {
    static MEZZO_INLINE UintN<MEZZO_LANES> codes(UintN<MEZZO_LANES> magnitude) {
        constexpr int N = MEZZO_LANES;
        const UintN<N> up = UintN<N>{} + 0x400000u;
        const UintN<N> half = select<N>((IntN<N>)magnitude < 0x800000, up - 1u, up);
        return select<N>((IntN<N>)magnitude >= 0x7f800000, UintN<N>{} + 0xffu, (magnitude + half) >> 23);
    }
    static constexpr std::uint32_t sign = 0;
};

template <class Format> MEZZO_INLINE void store_codes(std::uint8_t* to, FloatN<MEZZO_LANES> values) {
    constexpr int N = MEZZO_LANES;
    typedef std::uint8_t Bytes __attribute__((vector_size(N)));
    const UintN<N> u = (UintN<N>)values;
    const UintN<N> codes = Format::codes(u & 0x7fffffffu) | (u >> 24 & Format::sign);
    const Bytes bytes = __builtin_convertvector(narrow<N>(codes), Bytes);
    __builtin_memcpy(to, &bytes, sizeof bytes);
}

template <class Format> void floats_to_codes(const void* src, void* dst, std::int64_t n) {
    constexpr int lanes = MEZZO_LANES;
    const float* const from = static_cast<const float*>(src);
    std::uint8_t* const to = static_cast<std::uint8_t*>(dst);
    std::int64_t i = 0;
    for (; i + lanes <= n; i += lanes) store_codes<Format>(to + i, load<lanes>(from + i));
    if (i == n) return;
    float rest[lanes] = {};
    std::uint8_t codes[lanes];
    __builtin_memcpy(rest, from + i, std::size_t(n - i) * sizeof(float));
    store_codes<Format>(codes, load<lanes>(rest));
    __builtin_memcpy(to + i, codes, std::size_t(n - i));
}

constexpr ConvertKernels convert_kernels = {
    {
        {nullptr, convert_floats<float16_t, bfloat16_t>, convert_floats<float16_t, float>},
        {convert_floats<bfloat16_t, float16_t>, nullptr, convert_floats<bfloat16_t, float>},
        {convert_floats<float, float16_t>, convert_floats<float, bfloat16_t>, nullptr},
    },
    {booleans_to_float, convert_numbers<std::uint8_t, float>, convert_numbers<std::int32_t, float>},
    {floats_to_codes<E4M3>, floats_to_codes<E5M2>, floats_to_codes<E8M0>},
    convert_numbers<float, double>,
    convert_numbers<double, float>,
    convert_to_odd};

}  // namespace
}  // namespace mezzo::cpu
