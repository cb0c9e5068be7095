// Products of few rows with rows of 8-bit codes, each read once. Rows are read one after the other, so that
// all of them are one stream from memory.
#pragma once

#include "cpu/gemm/skinny_kernel.h"

namespace mezzo::cpu {
namespace {

constexpr int code_vectors = code_steps / lanes;
constexpr std::int64_t longest_code_sum = 2048;         // codes whose products are added in float32
constexpr std::int64_t into_l2 = 8192, into_l1 = 2048;  // bytes ahead that are prefetched

template <int N> using ByteN __attribute__((vector_size(N))) = std::int8_t;

// The values of N codes of int8.
template <int N> MEZZO_INLINE FloatN<N> code_values(const std::int8_t* p) {
#if defined(__AVX512F__)
    if constexpr (N == 16)
        return (FloatN<N>)_mm512_maskz_cvtepi32_ps(
            0xffff, _mm512_maskz_cvtepi8_epi32(0xffff, _mm_loadu_si128((const __m128i*)p)));
#endif
#if defined(__AVX2__)
    if constexpr (N == 8)
        return (FloatN<N>)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)));
#endif
    ByteN<N> bytes;
    __builtin_memcpy(&bytes, p, sizeof bytes);
    return __builtin_convertvector(bytes, FloatN<N>);
}

#if defined(__AVX2__)
// float16 numbers that have the bits of codes of float8_e4m3fn, given with their sign in 16 bits: the codes'
// values divided by 256, because float16's exponent has a larger bias. NaN gets all exponent bits.
template <int N> MEZZO_INLINE HalfN<N> halves_of(HalfN<N> codes) {
    const HalfN<N> halves = codes << 7 & 0xbf80;
    return halves | ((HalfN<N>)((halves & 0x3f80) == 0x3f80) & 0x4000);
}
#else
// Values of the codes of float8_e4m3fn, divided by 256. Four look-ups take less time than arithmetic on
// the bits of four codes.
struct E4m3Values {
    float of[256] = {};
    constexpr E4m3Values() {
        for (int i = 0; i < 256; ++i) {
            const float value = float(float8_e4m3fn_t::from_bits(std::uint8_t(i)));
            of[i] = value == value ? value / 256 : value;  // clang computes no NaN in a constant
        }
    }
};
constexpr E4m3Values e4m3_values;
#endif
// The values of N codes of float8_e4m3fn, divided by 256.
template <int N> MEZZO_INLINE FloatN<N> code_values(const float8_e4m3fn_t* p) {
#if defined(__AVX512F__)
    if constexpr (N == 16) {
        const __m256i codes = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)p));
        return (FloatN<N>)_mm512_maskz_cvtph_ps(0xffff, (__m256i)halves_of<N>((HalfN<N>)codes));
    }
#endif
#if defined(__AVX2__)
    if constexpr (N == 8) {
        const __m128i codes = _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i*)p));
        return (FloatN<N>)_mm256_cvtph_ps((__m128i)halves_of<N>((HalfN<N>)codes));
    }
#else
    FloatN<N> values = {};
#pragma GCC unroll 16
    for (int i = 0; i < N; ++i) values[i] = e4m3_values.of[p[i].bits];
    return values;
#endif
}

// Adds the product of code_steps codes with R rows of x, times scale, to the sums.
template <int R, class T>
MEZZO_INLINE void add_codes(const float* x, std::int64_t ldx, const T* codes, float scale, Vector (&sum)[R]) {
    Vector part[R] = {};
#pragma GCC unroll 4
    for (int v = 0; v < code_vectors; ++v) {
        const Vector w = code_values<lanes>(codes + v * lanes);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) part[r] += load<lanes>(x + r * ldx + v * lanes) * w;
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) sum[r] += part[r] * broadcast<lanes>(scale);
}

constexpr int code_chains = 2;  // of sums, for even and for odd parts of a row

// Adds the sums to the totals, and begins them anew.
template <int R> MEZZO_INLINE void end_sums(Vector (&sum)[code_chains][R], double (&total)[R]) {
    Vector both[R];
    float part[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) both[r] = sum[0][r] + sum[1][r], sum[0][r] = sum[1][r] = Vector{};
    horizontal_sums(both, part);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) total[r] += double(part[r]);
}

// Copies `count` < code_steps codes, and fills up with 0, which is the code of 0.
template <int = 0>
MEZZO_SHARED void fill_up(const std::uint8_t* codes, std::int64_t count, std::uint8_t* to) {
    for (int i = 0; i < code_steps; ++i) to[i] = i < count ? codes[i] : 0;
}

// Returns code_steps codes from step i on, filled up in `last` if the row is shorter.
template <class T>
MEZZO_INLINE const T* whole_part(const T* row, std::int64_t i, std::int64_t k, std::uint8_t* last) {
    if (i + code_steps <= k) return row + i;
    fill_up(reinterpret_cast<const std::uint8_t*>(row + i), k - i, last);
    return reinterpret_cast<const T*>(last);
}

// The products of R rows of x with one row of codes.
template <int R, class T>
void one_row(const CodeProduct& p, const float* x, const T* codes, const float* scale, float* t) {
    Vector sum[code_chains][R] = {};
    double total[R] = {};
    const std::int64_t step = p.groups > 1;
    std::int64_t i = 0, left = longest_code_sum;
    for (; i + code_chains * code_steps <= p.k; i += code_chains * code_steps, scale += code_chains * step) {
        __builtin_prefetch(reinterpret_cast<const char*>(codes + i) + into_l2, 0, 2);
        __builtin_prefetch(reinterpret_cast<const char*>(codes + i) + into_l1);
#pragma GCC unroll 2
        for (int c = 0; c < code_chains; ++c)
            add_codes<R>(x + i + c * code_steps, p.ldx, codes + i + c * code_steps, scale[c * step], sum[c]);
        if (left -= code_chains * code_steps; left == 0) end_sums(sum, total), left = longest_code_sum;
    }
    for (; i < p.k; i += code_steps, scale += step) {
        alignas(code_steps) std::uint8_t last[code_steps];
        add_codes<R>(x + i, p.ldx, whole_part(codes, i, p.k, last), *scale, sum[0]);
    }
    end_sums(sum, total);
    for (int r = 0; r < R; ++r) t[r * p.ldt] = float(total[r]);
}

template <class T> void all_rows(const CodeProduct& p) {
    constexpr int most = lanes >= 8 ? 4 : 1;      // rows of x at once
    for (std::int64_t j = 0; j < p.count; ++j) {  // its codes stay in the L1 cache
        const T* const row = static_cast<const T*>(p.codes) + j * p.k;
        const float* const scale = p.scale + j * p.groups;
        std::int64_t i = 0;
        for (; i + most <= p.rows; i += most)
            one_row<most>(p, p.x + i * p.ldx, row, scale, p.t + i * p.ldt + j);
        for (; most > 1 && i < p.rows; ++i) one_row<1>(p, p.x + i * p.ldx, row, scale, p.t + i * p.ldt + j);
    }
}

// The values of rows of codes.
template <class T> void values_of_rows(const CodeProduct& p) {
    alignas(code_steps) std::uint8_t last[code_steps];
    for (std::int64_t j = 0; j < p.count; ++j) {
        const T* const row = static_cast<const T*>(p.codes) + j * p.k;
        const float* scale = p.scale + j * p.groups;
        for (std::int64_t i = 0; i<p.k; i += code_steps, scale += p.groups> 1) {
            const T* const from = whole_part(row, i, p.k, last);
            float* const to = p.t + j * p.ldt + i;
#pragma GCC unroll 4
            for (int v = 0; v < code_vectors; ++v)
                store<lanes>(to + v * lanes, code_values<lanes>(from + v * lanes) * broadcast<lanes>(*scale));
        }
    }
}

template <int = 0> void all_values(const CodeProduct& p) {
    p.type == Dtype::int8 ? values_of_rows<std::int8_t>(p) : values_of_rows<float8_e4m3fn_t>(p);
}

template <int = 0> void codes(const CodeProduct& p) {
    p.type == Dtype::int8 ? all_rows<std::int8_t>(p) : all_rows<float8_e4m3fn_t>(p);
}

}  // namespace
}  // namespace mezzo::cpu
