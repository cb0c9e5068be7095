// The loops of channel_loops.h, one source for all instruction sets. The including file defines MEZZO_LANES.
// Everything has internal linkage; vector.h says why.
#pragma once

#include "cpu/isa/vector.h"
#include "cpu/norm/channel_loops.h"

namespace mezzo::cpu {
namespace {

// Columns come in units of 16, whose bits are two bytes.
constexpr int unit = 16;

// Vectors over elements of type T: how many lanes, how they are loaded and stored, and their bits.
template <class T> struct Lanes {
    using R = float;
    using V = FloatN<MEZZO_LANES>;
    static constexpr int count = MEZZO_LANES;
    static MEZZO_INLINE V get(const T* p) { return load<count>(p); }
    static MEZZO_INLINE void put(T* p, V v) { store<count>(p, v); }
    static MEZZO_INLINE V row(const float* p) { return load<count>(p); }
    static MEZZO_INLINE void put_row(float* p, V v) { store<count>(p, v); }
    // Bit i is set where lane i is positive.
    static MEZZO_INLINE unsigned positive(V v) {
#if defined(__AVX512F__)
        if constexpr (count == 16) return _mm512_cmp_ps_mask((__m512)v, __m512{}, _CMP_GT_OQ);
#elif defined(__AVX2__)
        if constexpr (count == 8) return unsigned(_mm256_movemask_ps((__m256)(v > V{})));
#elif defined(__aarch64__)
        if constexpr (count == 4) return vaddvq_u32((uint32x4_t)(v > V{}) & uint32x4_t{1, 2, 4, 8});
#endif
        const IntN<count> mask = v > V{};
        unsigned word = 0;
        for (int i = 0; i < count; ++i) word |= unsigned(mask[i] & 1) << i;
        return word;
    }
    // v where the lane's bit is set, else 0.
    static MEZZO_INLINE V masked(V v, unsigned word) {
#if defined(__AVX512F__)
        if constexpr (count == 16) return (V)_mm512_maskz_mov_ps((__mmask16)word, (__m512)v);
#endif
        IntN<count> bit;
        for (int i = 0; i < count; ++i) bit[i] = 1 << i;
        const IntN<count> chosen = (bit & int(word)) != 0;
        return (V)((UintN<count>)chosen & (UintN<count>)v);
    }
    static MEZZO_INLINE V relu(V v) { return select<count>(v <= V{}, V{}, v); }
};
template <> struct Lanes<double> {
    using R = double;
    using V = double;
    static constexpr int count = 1;
    static MEZZO_INLINE double get(const double* p) { return *p; }
    static MEZZO_INLINE void put(double* p, double v) { *p = v; }
    static MEZZO_INLINE double row(const double* p) { return *p; }
    static MEZZO_INLINE void put_row(double* p, double v) { *p = v; }
    static MEZZO_INLINE unsigned positive(double v) { return v > 0; }
    static MEZZO_INLINE double masked(double v, unsigned word) { return word & 1 ? v : 0; }
    static MEZZO_INLINE double relu(double v) { return v <= 0 ? 0 : v; }
};

MEZZO_INLINE unsigned read_bits(const std::uint8_t* bits) {
    std::uint16_t word;
    __builtin_memcpy(&word, bits, 2);
    return word;
}

// Bytes between an element and the ones that are prefetched when it is written. A store to a line that no
// cache holds waits until the line has been read, and few such stores wait at once: without prefetches
// writing takes two to three times as long. The memory may end before.
constexpr std::int64_t ahead = 8192;

// Prefetches the unit of elements `bytes` behind p, which will be written. As numbers, because it may lie
// outside of p's array.
template <class T> MEZZO_INLINE void prefetch_unit(const T* p, std::int64_t bytes) {
    for (std::int64_t i = 0; i < unit * std::int64_t(sizeof(T)); i += 64)
        __builtin_prefetch(
            reinterpret_cast<const char*>(reinterpret_cast<std::uintptr_t>(p) + std::uintptr_t(bytes + i)),
            1);
}

// The last elements, fewer than a unit: copies in memory that whole vectors may access.
template <class T> struct Rest {
    alignas(64) std::uint8_t bytes[unit * sizeof(T)] = {};
    Rest() = default;
    Rest(const T* from, std::int64_t n) {
        if (from) __builtin_memcpy(bytes, from, std::size_t(n) * sizeof(T));
    }
    T* get() { return reinterpret_cast<T*>(bytes); }
    void copy_to(T* to, std::int64_t n) const {
        if (to) __builtin_memcpy(static_cast<void*>(to), bytes, std::size_t(n) * sizeof(T));
    }
};
struct RestBits {
    std::uint8_t bytes[2] = {};
    RestBits() = default;
    RestBits(const std::uint8_t* from, std::int64_t n) {
        if (from) __builtin_memcpy(bytes, from, std::size_t((n + 7) / 8));
    }
    // Writes the bits of the first n elements.
    void copy_to(std::uint8_t* to, std::int64_t n) const {
        const unsigned word = read_bits(bytes) & ((1u << n) - 1);
        __builtin_memcpy(to, &word, std::size_t((n + 7) / 8));
    }
};

// ---- sums over columns

// Adds `rows` rows of one unit of columns, which lie `columns` elements apart, to that unit's sums.
template <class T, int rows> MEZZO_INLINE void add_moments(const T* x, std::int64_t columns,
                                                           const MomentsLoop<typename Lanes<T>::R>& m,
                                                           std::int64_t column) {
    using L = Lanes<T>;
    for (int i = 0; i < unit; i += L::count) {
        const typename L::V pivot = L::row(m.pivot + column + i);
        typename L::V sum = {}, squares = {};
        for (int r = 0; r < rows; ++r) {
            const typename L::V d = L::get(x + r * columns + i) - pivot;
            sum += d;
            squares += d * d;
        }
        L::put_row(m.sums + column + i, L::row(m.sums + column + i) + sum);
        L::put_row(m.squares + column + i, L::row(m.squares + column + i) + squares);
    }
}

template <class T> void add_last_moments(const T* x, const MomentsLoop<typename Lanes<T>::R>& m,
                                         std::int64_t column, std::int64_t n) {
    using R = typename Lanes<T>::R;
    Rest<T> last(x, n);
    Rest<R> pivot(m.pivot + column, n), sums(m.sums + column, n), squares(m.squares + column, n);
    add_moments<T, 1>(last.get(), 0, {nullptr, n, unit, pivot.get(), sums.get(), squares.get()}, 0);
    sums.copy_to(m.sums + column, n);
    squares.copy_to(m.squares + column, n);
}

// Eight rows at a time: sums of eight are added to the sums in memory, which also keeps rounding errors down.
template <class T> void moments(const MomentsLoop<typename Lanes<T>::R>& m) {
    constexpr int rows = 8;
    const T* x = static_cast<const T*>(m.x);
    std::int64_t left = m.n;
    for (; left >= rows * m.columns; left -= rows * m.columns, x += rows * m.columns)
        for (std::int64_t j = 0; j < m.columns; j += unit) add_moments<T, rows>(x + j, m.columns, m, j);
    while (left > 0) {
        const std::int64_t n = left < m.columns ? left : m.columns;
        std::int64_t j = 0;
        for (; j + unit <= n; j += unit) add_moments<T, 1>(x + j, 0, m, j);
        if (j < n) add_last_moments(x + j, m, j, n - j);
        x += n;
        left -= n;
    }
}

template <class T, int rows, bool has_bits>
MEZZO_INLINE void add_gradients(const T* g, const T* x, const std::uint8_t* bits, T* to, std::int64_t columns,
                                const GradSumsLoop<typename Lanes<T>::R>& s, std::int64_t column) {
    using L = Lanes<T>;
    constexpr int parts = unit / L::count;
    typename L::V sum[parts] = {}, product[parts] = {}, mean[parts];
    for (int p = 0; p < parts; ++p) mean[p] = L::row(s.mean + column + p * L::count);
    // The same columns of the rows that follow; if those are far, further columns of these rows.
    const std::int64_t block = rows * columns * std::int64_t(sizeof(T)),
                       next = block > 2 * ahead ? 512 : block;
    for (int r = 0; r < rows; ++r) {
        const std::int64_t at = r * columns;
        if (to) prefetch_unit(to + at, next);
        const unsigned word = has_bits ? read_bits(bits + at / 8) : 0;
        for (int p = 0; p < parts; ++p) {
            const int i = p * L::count;
            typename L::V v = L::get(g + at + i);
            if (has_bits) v = L::masked(v, word >> i);
            if (to) L::put(to + at + i, v);
            sum[p] += v;
            product[p] += v * (L::get(x + at + i) - mean[p]);
        }
    }
    for (int p = 0; p < parts; ++p) {
        const std::int64_t j = column + p * L::count;
        L::put_row(s.sums + j, L::row(s.sums + j) + sum[p]);
        L::put_row(s.products + j, L::row(s.products + j) + product[p]);
    }
}

template <class T, bool has_bits> void grad_sums_of(const GradSumsLoop<typename Lanes<T>::R>& s) {
    constexpr int rows = 8;
    const T *const g = static_cast<const T*>(s.g), *const x = static_cast<const T*>(s.x);
    T* const masked = static_cast<T*>(s.masked);
    const auto to = [=](std::int64_t i) { return masked ? masked + i : nullptr; };
    const auto bits = [&s](std::int64_t i) { return has_bits ? s.bits + i / 8 : nullptr; };
    std::int64_t i = 0;
    for (; s.n - i >= rows * s.columns; i += rows * s.columns)
        for (std::int64_t j = 0; j < s.columns; j += unit)
            add_gradients<T, rows, has_bits>(g + i + j, x + i + j, bits(i + j), to(i + j), s.columns, s, j);
    while (i < s.n) {
        const std::int64_t n = s.n - i < s.columns ? s.n - i : s.columns;
        std::int64_t j = 0;
        for (; j + unit <= n; j += unit)
            add_gradients<T, 1, has_bits>(g + i + j, x + i + j, bits(i + j), to(i + j), 0, s, j);
        if (j < n) {  // zeros beyond the end add nothing
            Rest<T> last_g(g + i + j, n - j), last_x(x + i + j, n - j), out;
            const RestBits last_bits(bits(i + j), n - j);
            add_gradients<T, 1, has_bits>(last_g.get(), last_x.get(), last_bits.bytes, out.get(), 0, s, j);
            out.copy_to(to(i + j), n - j);
        }
        i += n;
    }
}
template <class T> void grad_sums(const GradSumsLoop<typename Lanes<T>::R>& s) {
    s.bits ? grad_sums_of<T, true>(s) : grad_sums_of<T, false>(s);
}

// ---- element by element

// Calls body(i, j) for each whole unit, at element i and column j, and rest(i, j, n) for what is left over.
template <class Body, class RestBody>
MEZZO_INLINE void for_units(std::int64_t n, std::int64_t columns, const Body body, const RestBody rest) {
    for (std::int64_t i = 0; i < n; i += columns) {
        const std::int64_t end = n - i < columns ? n - i : columns;
        std::int64_t j = 0;
        for (; j + unit <= end; j += unit) body(i + j, j);
        if (j < end) rest(i + j, j, end - j);
    }
}

template <class T, bool added, bool rectified>
MEZZO_INLINE void normalise_unit(const T* x, const T* residual, T* y, std::uint8_t* bits,
                                 const NormaliseLoop<typename Lanes<T>::R>& s, std::int64_t column) {
    using L = Lanes<T>;
    unsigned word = 0;
    for (int i = 0; i < unit; i += L::count) {
        const std::int64_t j = column + i;
        typename L::V v = (L::get(x + i) - L::row(s.mean + j)) * L::row(s.scale + j) + L::row(s.shift + j);
        if (added) v += L::get(residual + i);
        if (rectified) {
            word |= L::positive(v) << i;
            v = L::relu(v);
        }
        L::put(y + i, v);
    }
    if (rectified && bits) {
        const auto both = std::uint16_t(word);
        __builtin_memcpy(bits, &both, 2);
    }
}

template <class T, bool added, bool rectified>
void normalise_of(const NormaliseLoop<typename Lanes<T>::R>& s) {
    const T *const x = static_cast<const T*>(s.x), *const residual = static_cast<const T*>(s.residual);
    T* const y = static_cast<T*>(s.y);
    std::uint8_t* const bits = s.bits;
    for_units(
        s.n, s.columns,
        [&](std::int64_t i, std::int64_t j) __attribute__((always_inline)) {
            prefetch_unit(y + i, ahead);
            normalise_unit<T, added, rectified>(x + i, added ? residual + i : nullptr, y + i,
                                                bits ? bits + i / 8 : nullptr, s, j);
        },
        [&](std::int64_t i, std::int64_t j, std::int64_t n) {
            Rest<T> last_x(x + i, n), last_residual(added ? residual + i : nullptr, n), out;
            RestBits word;
            normalise_unit<T, added, rectified>(last_x.get(), last_residual.get(), out.get(), word.bytes, s,
                                                j);
            out.copy_to(y + i, n);
            if (bits) word.copy_to(bits + i / 8, n);
        });
}
template <class T> void normalise(const NormaliseLoop<typename Lanes<T>::R>& s) {
    if (s.residual)
        s.relu ? normalise_of<T, true, true>(s) : normalise_of<T, true, false>(s);
    else
        s.relu ? normalise_of<T, false, true>(s) : normalise_of<T, false, false>(s);
}

template <class T, bool has_bits>
MEZZO_INLINE void grad_unit(const T* g, const T* x, const std::uint8_t* bits, T* dx,
                            const NormaliseGradLoop<typename Lanes<T>::R>& s, std::int64_t column) {
    using L = Lanes<T>;
    const unsigned word = has_bits ? read_bits(bits) : 0;
    for (int i = 0; i < unit; i += L::count) {
        const std::int64_t j = column + i;
        typename L::V v = L::get(g + i);
        if (has_bits) v = L::masked(v, word >> i);
        const typename L::V along = (L::get(x + i) - L::row(s.mean + j)) * L::row(s.slope + j);
        L::put(dx + i, v * L::row(s.scale + j) - along - L::row(s.offset + j));
    }
}

template <class T, bool has_bits> void normalise_grad_of(const NormaliseGradLoop<typename Lanes<T>::R>& s) {
    const T *const g = static_cast<const T*>(s.g), *const x = static_cast<const T*>(s.x);
    T* const dx = static_cast<T*>(s.dx);
    for_units(
        s.n, s.columns,
        [&](std::int64_t i, std::int64_t j) __attribute__((always_inline)) {
            prefetch_unit(dx + i, ahead);
            grad_unit<T, has_bits>(g + i, x + i, has_bits ? s.bits + i / 8 : nullptr, dx + i, s, j);
        },
        [&](std::int64_t i, std::int64_t j, std::int64_t n) {
            Rest<T> last_g(g + i, n), last_x(x + i, n), out;
            const RestBits word(has_bits ? s.bits + i / 8 : nullptr, n);
            grad_unit<T, has_bits>(last_g.get(), last_x.get(), word.bytes, out.get(), s, j);
            out.copy_to(dx + i, n);
        });
}
template <class T> void normalise_grad(const NormaliseGradLoop<typename Lanes<T>::R>& s) {
    s.bits ? normalise_grad_of<T, true>(s) : normalise_grad_of<T, false>(s);
}

template <class T> constexpr ChannelLoopsOf<typename Lanes<T>::R> channel_loops_of = {
    moments<T>, normalise<T>, grad_sums<T>, normalise_grad<T>};
constexpr ChannelLoops channel_loops = {
    {channel_loops_of<float16_t>, channel_loops_of<bfloat16_t>, channel_loops_of<float>},
#if MEZZO_ISA_WIDE_TYPES
    channel_loops_of<double>
#else
    {}
#endif
};

}  // namespace
}  // namespace mezzo::cpu
