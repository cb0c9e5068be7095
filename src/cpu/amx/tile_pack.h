// Packing of operands into tiles of bfloat16 (layout: tile_tables.h). A row of a tile of op(A) is 32 steps of
// one line, a row of a tile of op(B) a pair of steps of 16 lines. Everything has internal linkage; vector.h
// says why.
#pragma once

#include <type_traits>
#include <utility>

#include "cpu/amx/tile_tables.h"
#include "cpu/isa/vector.h"

namespace mezzo::cpu {
namespace {

typedef std::uint16_t Words __attribute__((vector_size(64)));
typedef std::uint32_t Slots __attribute__((vector_size(64)));
typedef std::uint64_t Longs __attribute__((vector_size(64)));

MEZZO_INLINE Words load_words(const void* p) {
    Words w;
    __builtin_memcpy(&w, p, sizeof w);
    return w;
}
template <class V> MEZZO_INLINE void store_bytes(void* p, const V& v) { __builtin_memcpy(p, &v, sizeof v); }

// Four pieces of 16 bytes, `stride` bytes apart. Inserting them while they are loaded costs no shuffle.
MEZZO_INLINE Words quarters(const char* p, std::int64_t stride) {
#if defined(__AVX512F__)
    const auto piece = [&](int i) { return _mm_loadu_si128((const __m128i*)(p + i * stride)); };
    __m512i v = _mm512_castsi128_si512(piece(0));
    v = _mm512_inserti32x4(v, piece(1), 1);
    v = _mm512_inserti32x4(v, piece(2), 2);
    return (Words)_mm512_inserti32x4(v, piece(3), 3);
#else
    Words w;
    for (int i = 0; i < 4; ++i) __builtin_memcpy((char*)&w + 16 * i, p + i * stride, 16);
    return w;
#endif
}

// Interleaves the lower (H = 0) or upper (1) halves of every 16 bytes of a and b, element by element.
template <int H, class V, std::size_t... I> MEZZO_INLINE V weave(V a, V b, std::index_sequence<I...>) {
    constexpr int count = sizeof...(I), lane = 16 / int(sizeof(a[0]));
    return __builtin_shufflevector(
        a, b, (int(I) / lane * lane + H * (lane / 2) + int(I) % lane / 2 + int(I) % 2 * count)...);
}
// The same for elements of U words.
template <int U, int H> MEZZO_INLINE Words weave(const Words& a, const Words& b) {
    if constexpr (U == 1) return weave<H>(a, b, std::make_index_sequence<32>());
    if constexpr (U == 2) return (Words)weave<H>((Slots)a, (Slots)b, std::make_index_sequence<16>());
    if constexpr (U == 4) return (Words)weave<H>((Longs)a, (Longs)b, std::make_index_sequence<8>());
}

// ---- full tiles; `from` is bfloat16, `stride` in bytes

// 16 lines of 32 steps, which have the layout of the tile already.
MEZZO_INLINE void a_from_lines(const char* from, std::int64_t stride, char* to) {
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) store_bytes(to + 64 * i, load_words(from + i * stride));
}

// 32 steps of 16 lines: eight steps of eight lines are transposed in every 16 bytes.
MEZZO_INLINE void a_from_steps(const char* from, std::int64_t stride, char* to) {
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
        Words r[8], s[8];
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) r[i] = quarters(from + i * stride + 16 * h, 8 * stride);
#pragma GCC unroll 4
        for (int i = 0; i < 8; i += 2) {
            s[i] = weave<1, 0>(r[i], r[i + 1]);
            s[i + 1] = weave<1, 1>(r[i], r[i + 1]);
        }
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            const int from_s = i / 2 * 4 + i % 2;
            r[2 * i] = weave<2, 0>(s[from_s], s[from_s + 2]);
            r[2 * i + 1] = weave<2, 1>(s[from_s], s[from_s + 2]);
        }
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            store_bytes(to + 64 * (8 * h + 2 * i), weave<4, 0>(r[i], r[4 + i]));
            store_bytes(to + 64 * (8 * h + 2 * i + 1), weave<4, 1>(r[i], r[4 + i]));
        }
    }
}

// 16 lines of 32 steps: four pairs of steps of four lines are transposed in every 16 bytes. Each line is read
// in one go, because lines 4 KiB apart share a set of the L1 cache, which holds 12 of them.
MEZZO_INLINE void b_from_lines(const char* from, std::int64_t stride, char* to) {
    Words r[4][4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
#pragma GCC unroll 4
        for (int q = 0; q < 4; ++q) r[q][i] = quarters(from + i * stride + 16 * q, 4 * stride);
#pragma GCC unroll 4
    for (int q = 0; q < 4; ++q) {
        const Words s0 = weave<2, 0>(r[q][0], r[q][1]), s1 = weave<2, 1>(r[q][0], r[q][1]),
                    s2 = weave<2, 0>(r[q][2], r[q][3]), s3 = weave<2, 1>(r[q][2], r[q][3]);
        store_bytes(to + 256 * q, weave<4, 0>(s0, s2));
        store_bytes(to + 256 * q + 64, weave<4, 1>(s0, s2));
        store_bytes(to + 256 * q + 128, weave<4, 0>(s1, s3));
        store_bytes(to + 256 * q + 192, weave<4, 1>(s1, s3));
    }
}

// 32 steps of 16 lines.
MEZZO_INLINE void b_from_steps(const char* from, std::int64_t stride, char* to) {
#pragma GCC unroll 16
    for (int p = 0; p < 16; ++p) {
        HalfN<16> even, odd;
        __builtin_memcpy(&even, from + 2 * p * stride, sizeof even);
        __builtin_memcpy(&odd, from + (2 * p + 1) * stride, sizeof odd);
        store_bytes(to + 64 * p, widen<16>(even) | widen<16>(odd) << 16);
    }
}

// ---- planes

// Stores two times 16 numbers that bfloat16 holds exactly.
MEZZO_INLINE void store_exact(char* p, FloatN<16> v, FloatN<16> w) {
#if defined(__AVX512BF16__)
    store_bytes(p, _mm512_cvtne2ps_pbh((__m512)w, (__m512)v));
#else
    store_bytes(p, narrow<16>((UintN<16>)v >> 16));
    store_bytes(p + 32, narrow<16>((UintN<16>)w >> 16));
#endif
}

// 16 numbers of type T as `planes` bfloat16 numbers each, in the upper halves of floats, whose sum is the
// number: each is the rest rounded to 8 significant bits, so two hold float16's 11 and three float32's 24.
// `special` becomes NaN where a number has no planes: it is not finite, or a float32 so large that products
// of parts could overflow where the product of the numbers does not.
template <int planes, class T> struct Planes {
    FloatN<16> of[planes];

    MEZZO_INLINE Planes(FloatN<16> v, FloatN<16>& special) {
        constexpr int enough = std::is_same_v<T, float> ? 3 : 2;
#pragma GCC unroll 3
        for (int q = 0; q < planes; ++q) {
            of[q] = v;
            if (q + 1 < enough) of[q] = (FloatN<16>)(((UintN<16>)v + 0x8000u) & 0xffff0000u);
            v -= of[q];
            if (q == 0) special += v * 0.0f;
            if (q == 0 && std::is_same_v<T, float>) special += of[0] * 0x1p72f * 0.0f;
        }
    }
};

template <class T> MEZZO_INLINE FloatN<16> load_some(const T* p, std::int64_t count) {
    return count >= 16 ? load<16>(p) : count > 0 ? load_first<16>(p, count) : FloatN<16>{};
}

// Stores 16 pairs of numbers that bfloat16 holds exactly.
MEZZO_INLINE void store_exact_pairs(char* p, FloatN<16> v, FloatN<16> w) {
    store_bytes(p, (UintN<16>)v >> 16 | ((UintN<16>)w & 0xffff0000u));
}

// Copies 16 lines of 32 steps (height 16), or 32 steps of 16 lines (height 32), to `to` as planes of bfloat16
// with rows of the same length, or with the steps of each line in pairs; what is missing is zero. `special`
// gets the sum of two local sums: one chain of additions would take longer than the work.
template <int planes, int height, bool pairs, class T>
MEZZO_INLINE void stage(const T* from, std::int64_t ld, std::int64_t rows, std::int64_t columns, char* to,
                        FloatN<16>& special) {
    FloatN<16> bad = {}, worse = {};
    for (int r = 0; r < 16; ++r, to += 64) {
        FloatN<16> v, w;
        if constexpr (height == 16) {
            const std::int64_t left = r < rows ? columns : 0;
            v = load_some(from + r * ld, left), w = load_some(from + r * ld + 16, left - 16);
        } else {
            v = load_some(from + 2 * r * ld, 2 * r < rows ? columns : 0);
            w = load_some(from + (2 * r + 1) * ld, 2 * r + 1 < rows ? columns : 0);
        }
        if constexpr (planes == 1) {
            pairs ? store_exact_pairs(to, v, w) : store_exact(to, v, w);
        } else {
            const Planes<planes, T> x(v, bad), y(w, worse);
#pragma GCC unroll 3
            for (int q = 0; q < planes; ++q)
                pairs ? store_exact_pairs(to + q * 2 * tile_bytes, x.of[q], y.of[q])
                      : store_exact(to + q * 2 * tile_bytes, x.of[q], y.of[q]);
        }
    }
    special += bad + worse;
}

// Packs one tile of every plane, from line i (a multiple of 16) and tile s of k on, of an operand of `width`
// lines and k steps, into its panels at `to`.
template <bool is_a, int planes, bool along_k, class T>
void pack_tile(const T* data, std::int64_t ld, std::int64_t width, std::int64_t k, std::int64_t i,
               std::int64_t s, char* to, std::int64_t panel, FloatN<16>& special) {
    alignas(64) char staged[planes * 2048];
    char* at = to + i / panel_lines * panel + s * planes * 2 * tile_bytes + i % panel_lines / 16 * tile_bytes;
    const std::int64_t lines = width - i, left = k - s * tile_steps;
    const T* from = data + (along_k ? i * ld + s * tile_steps : s * tile_steps * ld + i);
    const char* source = reinterpret_cast<const char*>(from);
    std::int64_t stride = ld * std::int64_t(sizeof(T));
    if (!std::is_same_v<T, bfloat16_t> || lines < 16 || left < tile_steps) {
        // Lines of op(A), and pairs of steps of op(B), are rows of the tile already.
        if constexpr (is_a && along_k) return stage<planes, 16, false>(from, ld, lines, left, at, special);
        if constexpr (!is_a && !along_k) return stage<planes, 32, true>(from, ld, left, lines, at, special);
        if constexpr (along_k)
            stage<planes, 16, false>(from, ld, lines, left, staged, special);
        else
            stage<planes, 32, false>(from, ld, left, lines, staged, special);
        source = staged;
        stride = along_k ? 64 : 32;
    }
#pragma GCC unroll 3
    for (int q = 0; q < planes; ++q, at += 2 * tile_bytes, source += 2048) {
        if constexpr (is_a && along_k) a_from_lines(source, stride, at);
        if constexpr (is_a && !along_k) a_from_steps(source, stride, at);
        if constexpr (!is_a && along_k) b_from_lines(source, stride, at);
        if constexpr (!is_a && !along_k) b_from_steps(source, stride, at);
    }
}

template <bool is_a, int planes, class T>
MEZZO_INLINE void pack_all(const TilePacking& p, const T* data, FloatN<16>& special) {
    const std::int64_t lines = (p.width + 15) / 16 * 16;
    if (p.x.along_k) {
        for (std::int64_t i = 0; i < lines; i += 16)
            for (std::int64_t s = p.first; s < p.end; ++s)
                pack_tile<is_a, planes, true>(data, p.x.ld, p.width, p.k, i, s, p.to, p.panel, special);
    } else {
        for (std::int64_t s = p.first; s < p.end; ++s)
            for (std::int64_t i = 0; i < lines; i += 16)
                pack_tile<is_a, planes, false>(data, p.x.ld, p.width, p.k, i, s, p.to, p.panel, special);
    }
}

// Packs in the order in which the operand lies in memory. False if an element has no planes.
template <bool is_a, int planes, class T> bool pack(const TilePacking& p) {
    FloatN<16> special = {};
    pack_all<is_a, planes>(p, static_cast<const T*>(p.x.data), special);
    bool finite = true;
    for (int l = 0; l < 16; ++l) finite = finite && special[l] == special[l];
    return finite;
}

}  // namespace
}  // namespace mezzo::cpu
