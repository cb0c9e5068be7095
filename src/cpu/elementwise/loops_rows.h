// Sums, extremes and exponentials of rows, several independent vectors at a time; a part of loops_kernel.h.
#pragma once

#include <cstddef>
#include <utility>

#include "cpu/elementwise/loops.h"
#include "cpu/isa/vector.h"
#include "kernels/functors.h"

namespace mezzo::cpu {
namespace {

// Width of a vector of doubles, and of a sum of rows: one register of AVX2 or AVX-512, because gcc keeps
// twice as much in memory, at half the speed. Without them sums have as many lanes as a vector of doubles.
#if defined(__AVX512F__)
inline constexpr int wide_bytes = 64;
#else
inline constexpr int wide_bytes = 32;
#endif

template <class T> struct Wide {
#if defined(__AVX2__)
    static constexpr int lanes = wide_bytes / sizeof(T);
#else
    static constexpr int lanes = wide_bytes / sizeof(double);
#endif
    typedef T V __attribute__((vector_size(lanes * sizeof(T))));
};

template <class T> MEZZO_HD typename Wide<T>::V load_wide(const T* p) {
    typename Wide<T>::V v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
}

// A vector of doubles, and of as many T.
template <class T> struct Doubles {
    static constexpr int lanes = wide_bytes / sizeof(double);
    typedef double V __attribute__((vector_size(wide_bytes)));
    typedef T Source __attribute__((vector_size(lanes * sizeof(T))));
};

// Converts elements. GCC's generic code splits a register of AVX-512, which takes three times as long.
template <class T> MEZZO_HD typename Doubles<T>::V widened(const typename Doubles<T>::Source& v) {
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4) return (typename Doubles<T>::V)_mm512_maskz_cvtps_pd(0xff, (__m256)v);
#endif
    return __builtin_convertvector(v, typename Doubles<T>::V);
}
template <class T> MEZZO_HD typename Doubles<T>::Source narrowed(const typename Doubles<T>::V& v) {
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4) return (typename Doubles<T>::Source)_mm512_maskz_cvtpd_ps(0xff, (__m512d)v);
#endif
    return __builtin_convertvector(v, typename Doubles<T>::Source);
}

template <class T> MEZZO_HD Doubles<float>::V load_doubles(const T* x) {
    typename Doubles<T>::Source v;
    __builtin_memcpy(&v, x, sizeof v);
    return widened<T>(v);
}
template <class T> MEZZO_HD Doubles<float>::V load_16bit(const T* x) {
    return widened<float>(load<Doubles<float>::lanes>(x));
}
MEZZO_HD Doubles<float>::V load_doubles(const float16_t* x) { return load_16bit(x); }
MEZZO_HD Doubles<float>::V load_doubles(const bfloat16_t* x) { return load_16bit(x); }

MEZZO_HD double element(const float* x) { return double(*x); }
MEZZO_HD double element(const double* x) { return *x; }
MEZZO_HD double element(const float16_t* x) { return double(load_first<4>(x, 1)[0]); }
MEZZO_HD double element(const bfloat16_t* x) { return double(load_first<4>(x, 1)[0]); }

template <class T> MEZZO_HD double add_lanes(const typename Wide<T>::V& v) {
    using Part = Doubles<T>;
    T lanes[Wide<T>::lanes];
    __builtin_memcpy(lanes, &v, sizeof lanes);
    typename Part::V total = {};
    for (int j = 0; j < Wide<T>::lanes; j += Part::lanes) total += load_doubles(lanes + j);
    double sum = (total[0] + total[2]) + (total[1] + total[3]);
    if constexpr (Part::lanes == 8) sum += (total[4] + total[6]) + (total[5] + total[7]);
    return sum;
}

// The sum over i < n of term(i); vector_term(i) is the terms from i to i + lanes - 1 as a vector.
template <class T, class VectorTerm, class Term>
MEZZO_HD double accumulate(std::int64_t n, const VectorTerm vector_term, const Term term) {
    constexpr std::int64_t lanes = Wide<T>::lanes, block = 64 * lanes;
    double total = 0;
    std::int64_t i = 0;
    while (n - i >= lanes) {
        const std::int64_t end = n - i < block ? n - (n - i) % lanes : i + block;
        typename Wide<T>::V s0 = {}, s1 = {}, s2 = {}, s3 = {};
        for (; i + 4 * lanes <= end; i += 4 * lanes) {
            s0 += vector_term(i);
            s1 += vector_term(i + lanes);
            s2 += vector_term(i + 2 * lanes);
            s3 += vector_term(i + 3 * lanes);
        }
        for (; i < end; i += lanes) s0 += vector_term(i);
        s0 = (s0 + s1) + (s2 + s3);
        total += add_lanes<T>(s0);
    }
    for (; i < n; ++i) total += double(term(i));
    return total;
}

template <class T> double sum(const T* x, std::int64_t n) {
    return accumulate<T>(
        n, [x](std::int64_t i) { return load_wide(x + i); }, [x](std::int64_t i) { return x[i]; });
}

// The sum of a row that is shorter than a vector.
template <class T> MEZZO_HD double short_sum(const T* x, std::int64_t n) {
    typedef T Source __attribute__((vector_size(4 * sizeof(T))));
    typedef double V __attribute__((vector_size(4 * sizeof(double))));
    V total = {};
    std::int64_t i = 0;
    for (; i + 4 <= n; i += 4) {
        Source v;
        __builtin_memcpy(&v, x + i, sizeof v);
        total += __builtin_convertvector(v, V);
    }
    double sum = (total[0] + total[2]) + (total[1] + total[3]);
    for (; i < n; ++i) sum += double(x[i]);
    return sum;
}

template <class T> void row_sums(double* dst, const T* x, std::int64_t rows, std::int64_t n) {
    for (std::int64_t i = 0; i < rows; ++i)
        dst[i] = n < Wide<T>::lanes ? short_sum(x + i * n, n) : sum(x + i * n, n);
}

// Of rows of a 16-bit type T, which are added up as floats.
template <class T>
void narrow_row_sums(double* dst, const void* rows_of_x, std::int64_t rows, std::int64_t n) {
    constexpr int lanes = Wide<float>::lanes;
    const T* x = static_cast<const T*>(rows_of_x);
    const std::int64_t rest = n % lanes;
    for (std::int64_t i = 0; i < rows; ++i, x += n) {
        dst[i] = accumulate<float>(
            n - rest, [x](std::int64_t j) { return load<lanes>(x + j); }, [](std::int64_t) { return 0.0f; });
        if (rest > 0) dst[i] += add_lanes<float>(load_first<lanes>(x + n - rest, rest));
    }
}

// The elements of v moved up by `steps` lanes, or down if `reverse`; the lanes that are left are 0.
template <int steps, bool reverse, class V, std::size_t... lane>
MEZZO_HD V moved(const V& v, std::index_sequence<lane...>) {
    constexpr int n = sizeof...(lane), by = reverse ? -steps : steps;
    return __builtin_shufflevector(V{}, v,
                                   (int(lane) - by >= 0 && int(lane) - by < n ? n + int(lane) - by : 0)...);
}
template <std::size_t from, class V, std::size_t... lane>
MEZZO_HD V spread_lane(const V& v, std::index_sequence<lane...>) {
    return __builtin_shufflevector(v, v, (lane * 0 + from)...);
}

// y[i] = before + x[0] + ... + x[i]; returns the last. Backwards, from x[n - 1] on, if `reverse`.
template <class T, bool reverse> double running_sum(T* y, const T* x, std::int64_t n, double before) {
    using V = typename Doubles<T>::V;
    constexpr std::int64_t lanes = Doubles<T>::lanes;
    constexpr std::make_index_sequence<std::size_t(lanes)> all{};
    constexpr std::size_t last = reverse ? 0 : lanes - 1;
    V total = V{} + before;
    std::int64_t done = 0;
    for (; done + lanes <= n; done += lanes) {
        const std::int64_t i = reverse ? n - done - lanes : done;
        V v = load_doubles(x + i);
        v += moved<1, reverse>(v, all);
        v += moved<2, reverse>(v, all);
        if constexpr (lanes == 8) v += moved<4, reverse>(v, all);
        const auto sums = narrowed<T>(total + v);
        __builtin_memcpy(y + i, &sums, sizeof sums);
        total += spread_lane<last>(v, all);
    }
    double sum = total[0];
    for (; done < n; ++done) {
        const std::int64_t i = reverse ? n - 1 - done : done;
        sum += double(x[i]);
        y[i] = T(sum);
    }
    return sum;
}

template <class T> double product(const T* x, std::int64_t n) {
    using V = typename Doubles<T>::V;
    constexpr std::int64_t lanes = Doubles<T>::lanes;
    V a = V{} + 1, b = a, c = a, d = a;
    std::int64_t i = 0;
    for (; i + 4 * lanes <= n; i += 4 * lanes) {
        a *= load_doubles(x + i);
        b *= load_doubles(x + i + lanes);
        c *= load_doubles(x + i + 2 * lanes);
        d *= load_doubles(x + i + 3 * lanes);
    }
    a = (a * b) * (c * d);
    double total = 1;
    for (int lane = 0; lane < lanes; ++lane) total *= a[lane];
    for (; i < n; ++i) total *= double(x[i]);
    return total;
}

template <class T> double sum_squares(const T* x, std::int64_t n) {
    const auto squares = [x](std::int64_t i) {
        const typename Wide<T>::V v = load_wide(x + i);
        return v * v;
    };
    return accumulate<T>(n, squares, [x](std::int64_t i) { return double(x[i]) * double(x[i]); });
}

template <class T> double dot(const T* a, const T* b, std::int64_t n) {
    return accumulate<T>(
        n, [=](std::int64_t i) { return load_wide(a + i) * load_wide(b + i); },
        [=](std::int64_t i) { return double(a[i]) * double(b[i]); });
}

template <class T>
MEZZO_HD void add_rows_to_double(double* dst, const T* x, int rows, std::int64_t stride, std::int64_t n) {
    using Sums = Doubles<double>;
    constexpr std::int64_t lanes = Sums::lanes;
    std::int64_t j = 0;
    for (; j + 4 * lanes <= n; j += 4 * lanes) {
        typename Sums::V a, b, c, d;
        __builtin_memcpy(&a, dst + j, sizeof a);
        __builtin_memcpy(&b, dst + j + lanes, sizeof b);
        __builtin_memcpy(&c, dst + j + 2 * lanes, sizeof c);
        __builtin_memcpy(&d, dst + j + 3 * lanes, sizeof d);
        for (int i = 0; i < rows; ++i) {
            const T* const row = x + i * stride + j;
            a += load_doubles(row);
            b += load_doubles(row + lanes);
            c += load_doubles(row + 2 * lanes);
            d += load_doubles(row + 3 * lanes);
        }
        __builtin_memcpy(dst + j, &a, sizeof a);
        __builtin_memcpy(dst + j + lanes, &b, sizeof b);
        __builtin_memcpy(dst + j + 2 * lanes, &c, sizeof c);
        __builtin_memcpy(dst + j + 3 * lanes, &d, sizeof d);
    }
    for (; j < n; ++j)
        for (int i = 0; i < rows; ++i) dst[j] += element(x + i * stride + j);
}
// dst[j] += x[i * stride + j] for i < rows, in their order; eight rows at a time, so that the sums are loaded
// and stored less often.
template <class T>
void add_to_double(double* dst, const T* x, std::int64_t rows, std::int64_t stride, std::int64_t n) {
    constexpr int together = 8;
    for (; rows >= together; rows -= together, x += together * stride)
        add_rows_to_double(dst, x, together, stride, n);
    for (; rows > 0; --rows, x += stride) add_rows_to_double(dst, x, 1, stride, n);
}
template <class T> void narrow_add_to_double(double* dst, const void* x, std::int64_t rows,
                                             std::int64_t stride, std::int64_t n) {
    add_to_double(dst, static_cast<const T*>(x), rows, stride, n);
}

template <class T, bool largest> MEZZO_HD T better(T a, T b) {
    return (largest ? a > b : a < b) || a != a ? a : b;
}
// mask ? a : b for lanes that are all ones or all zeros.
template <class V, class M> MEZZO_HD V choose(const M& mask, const V& a, const V& b) {
#if defined(__AVX512F__)
    return mask ? a : b;
#else  // gcc compares the mask with zero, element by element if a vector takes several registers
    return (V)((mask & (M)a) | (~mask & (M)b));
#endif
}
template <class T, bool largest>
MEZZO_HD void take_better(typename Wide<T>::V& best, const typename Wide<T>::V& x) {
    best = choose<typename Wide<T>::V>((largest ? x > best : x < best) | (x != x), x, best);
}
template <class T, int lanes> struct PartOf { typedef T V __attribute__((vector_size(lanes * sizeof(T)))); };

// The best lane of v: of its halves, and so on.
template <class T, bool largest, int lanes> MEZZO_HD T best_lane(const typename PartOf<T, lanes>::V& v) {
    if constexpr (lanes == 2) {
        return better<T, largest>(v[1], v[0]);
    } else {
        using Half = typename PartOf<T, lanes / 2>::V;
        Half half[2];
        __builtin_memcpy(half, &v, sizeof v);
        const Half best = choose<Half>(
            (largest ? half[1] > half[0] : half[1] < half[0]) | (half[1] != half[1]), half[1], half[0]);
        return best_lane<T, largest, lanes / 2>(best);
    }
}

template <class T, bool largest> MEZZO_HD T extreme(const T* x, std::int64_t n) {
    constexpr std::int64_t lanes = Wide<T>::lanes;
    if (n < lanes) {
        T best = x[0];
        for (std::int64_t i = 1; i < n; ++i) best = better<T, largest>(x[i], best);
        return best;
    }
    typename Wide<T>::V v0 = load_wide(x), v1 = v0, v2 = v0, v3 = v0;
    std::int64_t i = 0;
    for (; i + 4 * lanes <= n; i += 4 * lanes) {
        take_better<T, largest>(v0, load_wide(x + i));
        take_better<T, largest>(v1, load_wide(x + i + lanes));
        take_better<T, largest>(v2, load_wide(x + i + 2 * lanes));
        take_better<T, largest>(v3, load_wide(x + i + 3 * lanes));
    }
    for (; i + lanes <= n; i += lanes) take_better<T, largest>(v0, load_wide(x + i));
    take_better<T, largest>(v1, load_wide(x + n - lanes));  // some elements a second time
    take_better<T, largest>(v0, v1);
    take_better<T, largest>(v2, v3);
    take_better<T, largest>(v0, v2);
    return best_lane<T, largest, int(lanes)>(v0);
}

template <class T> MEZZO_HD double exp_sum(T* dst, const T* x, std::int64_t n, T shift) {
    constexpr std::int64_t block = 1024;
    T buffer[block];
    double total = 0;
    for (std::int64_t i = 0; i < n; i += block) {
        const std::int64_t count = n - i < block ? n - i : block;
        T* const to = dst ? dst + i : buffer;
        MEZZO_VECTOR_LOOP for (std::int64_t j = 0; j < count; ++j) to[j] =
            functors::math::exp(x[i + j] - shift);
        total += sum(to, count);
    }
    return total;
}

template <class T> void softmax(T* dst, const T* x, std::int64_t rows, std::int64_t n) {
    for (std::int64_t row = 0; row < rows; ++row, x += n, dst += n) {
        const T factor = T(1 / exp_sum(dst, x, n, extreme<T, true>(x, n)));
        MEZZO_VECTOR_LOOP for (std::int64_t i = 0; i < n; ++i) dst[i] *= factor;
    }
}

template <class T> void softmax_grad(T* dst, const T* g, const T* y, std::int64_t rows, std::int64_t n) {
    for (std::int64_t row = 0; row < rows; ++row, g += n, y += n, dst += n) {
        const T dot_g_y = T(dot(g, y, n));
        MEZZO_VECTOR_LOOP for (std::int64_t i = 0; i < n; ++i) dst[i] = y[i] * (g[i] - dot_g_y);
    }
}

// The same down the columns of x [rows, n], whose rows lie `stride` elements apart.
template <class T>
void softmax_columns(T* dst, const T* x, std::int64_t rows, std::int64_t stride, std::int64_t n) {
    constexpr std::int64_t together = 64;  // rows that are added up before their sum is converted
    T largest[softmax_width], part[softmax_width];
    double total[softmax_width] = {};
    for (std::int64_t c = 0; c < n; ++c) largest[c] = x[c];
    for (std::int64_t i = 1; i < rows; ++i) {
        const T* const from = x + i * stride;
        MEZZO_VECTOR_LOOP for (std::int64_t c = 0; c < n; ++c) largest[c] =
            better<T, true>(from[c], largest[c]);
    }
    for (std::int64_t i = 0; i < rows;) {
        for (std::int64_t c = 0; c < n; ++c) part[c] = 0;
        for (const std::int64_t end = rows - i < together ? rows : i + together; i < end; ++i) {
            const T* const from = x + i * stride;
            T* const to = dst + i * stride;
            MEZZO_VECTOR_LOOP for (std::int64_t c = 0; c < n; ++c) {
                to[c] = functors::math::exp(from[c] - largest[c]);
                part[c] += to[c];
            }
        }
        for (std::int64_t c = 0; c < n; ++c) total[c] += double(part[c]);
    }
    for (std::int64_t c = 0; c < n; ++c) part[c] = T(1 / total[c]);
    for (std::int64_t i = 0; i < rows; ++i) {
        T* const to = dst + i * stride;
        MEZZO_VECTOR_LOOP for (std::int64_t c = 0; c < n; ++c) to[c] *= part[c];
    }
}

template <class T> void softmax_grad_columns(T* dst, const T* g, const T* y, std::int64_t rows,
                                             std::int64_t stride, std::int64_t n) {
    constexpr std::int64_t together = 64;
    T part[softmax_width];
    double total[softmax_width] = {};
    for (std::int64_t i = 0; i < rows;) {
        for (std::int64_t c = 0; c < n; ++c) part[c] = 0;
        for (const std::int64_t end = rows - i < together ? rows : i + together; i < end; ++i) {
            const T *const from_g = g + i * stride, *const from_y = y + i * stride;
            MEZZO_VECTOR_LOOP for (std::int64_t c = 0; c < n; ++c) part[c] += from_g[c] * from_y[c];
        }
        for (std::int64_t c = 0; c < n; ++c) total[c] += double(part[c]);
    }
    for (std::int64_t c = 0; c < n; ++c) part[c] = T(total[c]);
    for (std::int64_t i = 0; i < rows; ++i) {
        const T *const from_g = g + i * stride, *const from_y = y + i * stride;
        T* const to = dst + i * stride;
        MEZZO_VECTOR_LOOP for (std::int64_t c = 0; c < n; ++c) to[c] = from_y[c] * (from_g[c] - part[c]);
    }
}

}  // namespace
}  // namespace mezzo::cpu
