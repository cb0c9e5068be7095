// The loops of pool_loops.h, one source for all instruction sets. Everything has internal linkage; vector.h
// says why.
#pragma once

#pragma GCC diagnostic ignored "-Wpsabi"

#include "cpu/isa/vector.h"
#include "cpu/pool/pool_loops.h"
#include "kernels/pool_geometry.h"

namespace mezzo::cpu {
namespace {

// Vectors in which elements of T are computed.
template <class T> struct VectorOf {
    static constexpr int lanes = MEZZO_LANES;
    using V = FloatN<lanes>;
    using I = IntN<lanes>;
    using Lane = std::int32_t;
    static MEZZO_INLINE V load(const T* p) { return cpu::load<lanes>(p); }
    static MEZZO_INLINE V load_first(const T* p, std::int64_t n) { return cpu::load_first<lanes>(p, n); }
    static MEZZO_INLINE void store(T* p, V v) { cpu::store<lanes>(p, v); }
    static MEZZO_INLINE void store_first(T* p, V v, std::int64_t n) { cpu::store_first<lanes>(p, v, n); }
    static MEZZO_INLINE V choose(I mask, V a, V b) { return select<lanes>(mask, a, b); }
    static MEZZO_INLINE I choose(I mask, I a, I b) {
        return (I)select<lanes>(mask, (UintN<lanes>)a, (UintN<lanes>)b);
    }
};
template <> struct VectorOf<double> {
    static constexpr int lanes = MEZZO_LANES / 2;
    typedef double V __attribute__((vector_size(lanes * 8)));
    typedef std::int64_t I __attribute__((vector_size(lanes * 8)));
    using Lane = std::int64_t;
    static MEZZO_INLINE V load(const double* p) { return load_first(p, lanes); }
    static MEZZO_INLINE V load_first(const double* p, std::int64_t n) {
        V v = {};
        __builtin_memcpy(&v, p, std::size_t(n) * sizeof(double));
        return v;
    }
    static MEZZO_INLINE void store(double* p, V v) { store_first(p, v, lanes); }
    static MEZZO_INLINE void store_first(double* p, V v, std::int64_t n) {
        __builtin_memcpy(p, &v, std::size_t(n) * sizeof(double));
    }
    static MEZZO_INLINE V choose(I mask, V a, V b) { return (V)((mask & (I)a) | (~mask & (I)b)); }
    static MEZZO_INLINE I choose(I mask, I a, I b) { return (mask & a) | (~mask & b); }
};

template <class I> constexpr int lanes_of = int(sizeof(I) / sizeof(I{}[0]));

// GCC's generic conversions between bytes and integers take an instruction or more per element.
template <class I> MEZZO_INLINE I widen_bytes(const std::uint8_t* p) {
#if defined(__AVX512F__)
    if constexpr (lanes_of<I> == 16)
        return (I)_mm512_maskz_cvtepu8_epi32(0xffff, _mm_loadu_si128((const __m128i*)p));
#elif defined(__AVX2__)
    if constexpr (lanes_of<I> == 8 && sizeof(I) == 32)
        return (I)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p));
#elif defined(__aarch64__)
    if constexpr (lanes_of<I> == 4 && sizeof(I) == 16) {
        std::uint32_t word;
        __builtin_memcpy(&word, p, sizeof word);
        return (I)vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(word))));
    }
#endif
    typedef std::uint8_t Bytes __attribute__((vector_size(lanes_of<I>)));
    Bytes bytes;
    __builtin_memcpy(&bytes, p, sizeof bytes);
    return __builtin_convertvector(bytes, I);
}
template <class I> MEZZO_INLINE void narrow_bytes(std::uint8_t* p, I v) {
#if defined(__AVX512F__)
    if constexpr (lanes_of<I> == 16)
        return _mm_storeu_si128((__m128i*)p, _mm512_maskz_cvtepi32_epi8(0xffff, (__m512i)v));
#elif defined(__AVX2__)
    if constexpr (lanes_of<I> == 8 && sizeof(I) == 32) {
        const __m128i halves =
            _mm_packus_epi32(_mm256_castsi256_si128((__m256i)v), _mm256_extracti128_si256((__m256i)v, 1));
        return _mm_storel_epi64((__m128i*)p, _mm_packus_epi16(halves, halves));
    }
#elif defined(__aarch64__)
    if constexpr (lanes_of<I> == 4 && sizeof(I) == 16) {
        const uint16x4_t halves = vmovn_u32((uint32x4_t)v);
        const uint8x8_t bytes = vmovn_u16(vcombine_u16(halves, halves));
        __builtin_memcpy(p, &bytes, 4);
        return;
    }
#endif
    typedef std::uint8_t Bytes __attribute__((vector_size(lanes_of<I>)));
    const Bytes bytes = __builtin_convertvector(v, Bytes);
    __builtin_memcpy(p, &bytes, sizeof bytes);
}

// Positions of the maxima for the channels of a vector, as lanes of I. P is uint8 or uint32.
template <class P> struct PlacesOf {
    template <class I> static MEZZO_INLINE I load_all(const P* p) {
        if constexpr (sizeof(P) == 1) return widen_bytes<I>(p);
        typedef P Some __attribute__((vector_size(lanes_of<I> * sizeof(P))));
        Some some;
        __builtin_memcpy(&some, p, sizeof some);
        return __builtin_convertvector(some, I);
    }
    template <class I> static MEZZO_INLINE I load(const P* p, std::int64_t n) {
        if (n == lanes_of<I>) return load_all<I>(p);
        P some[lanes_of<I>] = {};
        __builtin_memcpy(some, p, std::size_t(n) * sizeof(P));
        return load_all<I>(some);
    }
    template <class I> static MEZZO_INLINE void store_all(P* p, I v) {
        if constexpr (sizeof(P) == 1) return narrow_bytes<I>(p, v);
        typedef P Some __attribute__((vector_size(lanes_of<I> * sizeof(P))));
        const Some some = __builtin_convertvector(v, Some);
        __builtin_memcpy(p, &some, sizeof some);
    }
    template <class I> static MEZZO_INLINE void store(P* p, I v, std::int64_t n) {
        if (n == lanes_of<I>) return store_all<I>(p, v);
        P some[lanes_of<I>];
        store_all<I>(some, v);
        __builtin_memcpy(p, some, std::size_t(n) * sizeof(P));
    }
};

// The same for n positions whose type is known only here.
template <class I>
MEZZO_SHARED I load_places(const void* places, bool wide, std::int64_t at, std::int64_t n) {
    if (wide) return PlacesOf<std::uint32_t>::load<I>(static_cast<const std::uint32_t*>(places) + at, n);
    return PlacesOf<std::uint8_t>::load<I>(static_cast<const std::uint8_t*>(places) + at, n);
}
template <class I>
MEZZO_SHARED void store_places(void* places, bool wide, std::int64_t at, I v, std::int64_t n) {
    if (wide) return PlacesOf<std::uint32_t>::store<I>(static_cast<std::uint32_t*>(places) + at, v, n);
    PlacesOf<std::uint8_t>::store<I>(static_cast<std::uint8_t*>(places) + at, v, n);
}

// Calls f(blocks of B vectors, channel, elements in the last vector): whole blocks first, then single
// vectors. With B = 1 there is one call for whole vectors and parts, whose loops are half as large.
template <int B> struct Block { static constexpr int vectors = B; };
template <int B, class T, class F>
MEZZO_INLINE void for_channels(std::int64_t first, std::int64_t last, const F f) {
    constexpr std::int64_t lanes = VectorOf<T>::lanes;
    std::int64_t c = first;
    if constexpr (B > 1) {
        for (; c + B * lanes <= last; c += B * lanes) f(Block<B>{}, c, lanes);
        for (; c + lanes <= last; c += lanes) f(Block<1>{}, c, lanes);
        if (c < last) f(Block<1>{}, c, last - c);
    } else {
        for (; c < last; c += lanes) f(Block<1>{}, c, last - c < lanes ? last - c : lanes);
    }
}

// The sum over rows and columns of the run of one pixel, for B vectors of channels: sums of up to 256
// columns, which are added up.
template <bool weighted, int B, class T, class R, class W>
MEZZO_INLINE void add_window(const WindowRow<T, R>& row, const WeightedRun<R>& columns, std::int64_t c,
                             std::int64_t n, W (&total)[B]) {
    using Vector = VectorOf<T>;
    constexpr std::int64_t chain = 256;
    for (std::int64_t r = row.rows.begin; r < row.rows.end; ++r)
        for (std::int64_t s = columns.begin; s < columns.end;) {
            const T* p = row.from + (r * row.width + s) * row.channels + c;
            const std::int64_t end = columns.end - s > chain ? s + chain : columns.end;
            W sums[B] = {};
            for (; s < end; ++s, p += row.channels)
                for (int b = 0; b < B; ++b) {
                    const W v =
                        n == Vector::lanes ? Vector::load(p + b * Vector::lanes) : Vector::load_first(p, n);
                    if constexpr (weighted)
                        sums[b] += v * columns.weights[s - columns.begin];
                    else
                        sums[b] += v;
                }
            for (int b = 0; b < B; ++b) {
                if constexpr (weighted)
                    total[b] += sums[b] * row.rows.weights[r - row.rows.begin];
                else
                    total[b] += sums[b];
            }
        }
}

// The same for two rows and two columns with weights, which resizing reads between pixels.
template <int B, class T, class R, class W>
MEZZO_INLINE void add_four_pixels(const WindowRow<T, R>& row, const WeightedRun<R>& columns, std::int64_t c,
                                  std::int64_t n, W (&total)[B]) {
    using Vector = VectorOf<T>;
    const std::int64_t below = row.width * row.channels;
    const T* p = row.from + (row.rows.begin * row.width + columns.begin) * row.channels + c;
    const R left = columns.weights[0], right = columns.weights[1], upper = row.rows.weights[0],
            lower = row.rows.weights[1];
    const auto load = [n](const T* from) __attribute__((always_inline)) {
        return n == Vector::lanes ? Vector::load(from) : Vector::load_first(from, n);
    };
    for (int b = 0; b < B; ++b, p += Vector::lanes)
        total[b] = (load(p) * left + load(p + row.channels) * right) * upper +
                   (load(p + below) * left + load(p + below + row.channels) * right) * lower;
}

template <bool weighted, class T, class R> void window_row(const WindowRow<T, R>& row) {
    using Vector = VectorOf<T>;
    for (std::int64_t i = 0; i < row.count; ++i) {
        T* const to = row.to + i * row.channels;
        const WeightedRun<R> columns = row.columns[i];
        const R divisor = weighted ? R(1) : row.row_divisor * row.divisors[i];
        const bool four = row.rows.end - row.rows.begin == 2 && columns.end - columns.begin == 2;
        for_channels<4, T>(
            row.first,
            row.last, [&](auto block, std::int64_t c, std::int64_t n) __attribute__((always_inline)) {
                constexpr int B = decltype(block)::vectors;
                typename Vector::V total[B] = {};
                if (weighted && four)
                    add_four_pixels(row, columns, c, n, total);
                else
                    add_window<weighted>(row, columns, c, n, total);
                for (int b = 0; b < B; ++b) {
                    if constexpr (!weighted) total[b] /= divisor;
                    if (n == Vector::lanes)
                        Vector::store(to + c + b * Vector::lanes, total[b]);
                    else
                        Vector::store_first(to + c, total[b], n);
                }
            });
    }
}

// ---- the largest of each window

// B whole vectors of channels with positions in uint8, or one with n elements.
template <class T, bool whole, int B>
MEZZO_INLINE void max_pixel(const MaxRow<T>& row, const kernels::PoolPlaces& rows,
                            const kernels::PoolPlaces& columns, std::int64_t i, std::int64_t c,
                            std::int64_t n) {
    using Vector = VectorOf<T>;
    using V = typename Vector::V;
    using I = typename Vector::I;
    const T* from = row.from + c;
    V best[B];
    I place[B] = {};
    for (int b = 0; b < B; ++b) best[b] = V{} - __builtin_inf();
    bool found = false;
    for (std::int64_t r = rows.begin; r < rows.end; ++r)
        for (std::int64_t s = columns.begin; s < columns.end; ++s) {
            const std::int64_t y = rows.first + r * row.height.dilation,
                               x = columns.first + s * row.width.dilation;
            const T* const p = from + (y * row.image_width + x) * row.channels;
            const I here = I{} + typename Vector::Lane(r * row.window_width + s);
            for (int b = 0; b < B; ++b) {
                const V v = whole || n == Vector::lanes ? Vector::load(p + b * Vector::lanes)
                                                        : Vector::load_first(p, n);
                const I larger = (I)(v > best[b]), nan = (I)(v != v);
                best[b] = Vector::choose(nan, v, Vector::choose(larger, v, best[b]));
                place[b] = Vector::choose(nan, here, Vector::choose(larger, here, place[b]));
                if (!found) place[b] = here;
            }
            found = true;
        }
    const std::int64_t at = i * row.channels + c;
    for (int b = 0; b < B; ++b) {
        if (whole || n == Vector::lanes)
            Vector::store(row.to + at + b * Vector::lanes, best[b]);
        else
            Vector::store_first(row.to + at, best[b], n);
        if (!row.places) continue;
        if constexpr (whole)
            PlacesOf<std::uint8_t>::store_all<I>(
                static_cast<std::uint8_t*>(row.places) + at + b * Vector::lanes, place[b]);
        else
            store_places<I>(row.places, row.wide_places, at, place[b], n);
    }
}

template <bool B> struct Whole { static constexpr bool value = B; };
// Calls f(block, whole, channel, n) for blocks of vectors. Wide positions are rare: they share the loop of
// the last channels.
template <class T, class F> MEZZO_INLINE void for_max_channels(const MaxRow<T>& row, const F f) {
    constexpr std::int64_t lanes = VectorOf<T>::lanes;
    std::int64_t c = row.first;
    if (!row.wide_places) {
        for (; c + 4 * lanes <= row.last; c += 4 * lanes) f(Block<4>{}, Whole<true>{}, c, lanes);
        for (; c + lanes <= row.last; c += lanes) f(Block<1>{}, Whole<true>{}, c, lanes);
    }
    for (; c < row.last; c += lanes)
        f(Block<1>{}, Whole<false>{}, c, row.last - c < lanes ? row.last - c : lanes);
}

template <class T> void max_row(const MaxRow<T>& row) {
    const kernels::PoolPlaces rows =
        kernels::places_of(row.height, row.image_height, row.result_height, row.row);
    for (std::int64_t i = 0; i < row.result_width; ++i) {
        const kernels::PoolPlaces columns =
            kernels::places_of(row.width, row.image_width, row.result_width, i);
        for_max_channels(
            row, [&](auto block, auto whole, std::int64_t c, std::int64_t n) __attribute__((always_inline)) {
                max_pixel<T, decltype(whole)::value, decltype(block)::vectors>(row, rows, columns, i, c, n);
            });
    }
}

// The sum of the gradients of all windows whose largest element is the pixel at column i of the row.
template <class T, bool whole, int B>
MEZZO_INLINE void max_grad_pixel(const MaxRow<T>& row, const kernels::PoolReaders& rows, std::int64_t i,
                                 std::int64_t c, std::int64_t n) {
    using Vector = VectorOf<T>;
    using V = typename Vector::V;
    using I = typename Vector::I;
    const kernels::PoolReaders columns = kernels::readers_of(row.width, row.image_width, row.result_width, i);
    V total[B] = {};
    for (std::int64_t y = rows.begin; y < rows.end; ++y) {
        const std::int64_t r = kernels::place_of(row.height, row.image_height, row.result_height, y, row.row);
        if (r < 0) continue;
        for (std::int64_t x = columns.begin; x < columns.end; ++x) {
            const std::int64_t s = kernels::place_of(row.width, row.image_width, row.result_width, x, i);
            if (s < 0) continue;
            const I here = I{} + typename Vector::Lane(r * row.window_width + s);
            const std::int64_t at = (y * row.result_width + x) * row.channels + c;
            const T* const p = row.from + at;
            for (int b = 0; b < B; ++b) {
                const V v = whole || n == Vector::lanes ? Vector::load(p + b * Vector::lanes)
                                                        : Vector::load_first(p, n);
                I place;
                if constexpr (whole)
                    place = PlacesOf<std::uint8_t>::load_all<I>(static_cast<const std::uint8_t*>(row.places) +
                                                                at + b * Vector::lanes);
                else
                    place = load_places<I>(row.places, row.wide_places, at, n);
                total[b] += Vector::choose((I)(place == here), v, V{});
            }
        }
    }
    T* const to = row.to + i * row.channels + c;
    for (int b = 0; b < B; ++b) {
        if (whole || n == Vector::lanes)
            Vector::store(to + b * Vector::lanes, total[b]);
        else
            Vector::store_first(to, total[b], n);
    }
}

template <class T> void max_grad_row(const MaxRow<T>& row) {
    const kernels::PoolReaders rows =
        kernels::readers_of(row.height, row.image_height, row.result_height, row.row);
    for (std::int64_t i = 0; i < row.image_width; ++i)
        for_max_channels(
            row, [&](auto block, auto whole, std::int64_t c, std::int64_t n) __attribute__((always_inline)) {
                max_grad_pixel<T, decltype(whole)::value, decltype(block)::vectors>(row, rows, i, c, n);
            });
}

template <class T, class R> constexpr PoolTable<T, R> pool_table{
    window_row<true, T, R>, window_row<false, T, R>, max_row<T>, max_grad_row<T>};

}  // namespace
}  // namespace mezzo::cpu
