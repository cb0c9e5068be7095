// The GEMM kernels, one source for all instruction sets. The including file defines MEZZO_LANES (floats per
// vector), MEZZO_MR and MEZZO_NR (register tile; NR a multiple of LANES) and MEZZO_KC, MEZZO_MC, MEZZO_NC
// (see GemmKernels), and takes the function pointers from `kernels`. Internal linkage throughout: see
// vector.h.
#pragma once

#include <type_traits>

#include "cpu/isa_tables.h"
#include "cpu/vector.h"
#include "cpu/vector_math.h"

namespace mezzo::cpu {
namespace {

constexpr int lanes = MEZZO_LANES, mr = MEZZO_MR, nr = MEZZO_NR;
static_assert(nr % lanes == 0 && mr % 2 == 0 && mr >= 4 && MEZZO_MC % mr == 0 && MEZZO_NC % nr == 0);
using Vector = FloatN<lanes>;

// Calls f with p as a pointer to the element type.
template <class F> MEZZO_INLINE void with_type(Dtype type, const void* p, const F& f) {
    if (type == Dtype::float32) f(static_cast<const float*>(p));
    if (type == Dtype::bfloat16) f(static_cast<const bfloat16_t*>(p));
    if (type == Dtype::float16) f(static_cast<const float16_t*>(p));
}

MEZZO_INLINE std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

// ---- packing: dst[p * P + i] = float(element i of the panel at step p)

// Source contiguous along the panel: full vectors, the last one overlapping its neighbour.
template <int P, class T>
MEZZO_INLINE void pack_across(const T* src, std::int64_t ld, std::int64_t width, std::int64_t k, float* dst) {
    constexpr int pow2 = P >= 16 ? 16 : P >= 8 ? 8 : 4;
    constexpr int n = pow2 < lanes ? pow2 : lanes;
    for (std::int64_t p = 0; p < k; ++p, src += ld, dst += P) {
        if (width == P) {
#pragma GCC unroll 8
            for (int i = 0; i < P; i += n) {
                const int at = i + n <= P ? i : P - n;
                store<n>(dst + at, load<n>(src + at));
            }
        } else {
            for (int i = 0; i < P; i += 2) {
                const std::int64_t left = width - i;
                store<2>(dst + i, left >= 2   ? load<2>(src + i)
                                  : left == 1 ? load_first<2>(src + i, 1)
                                              : FloatN<2>{});
            }
        }
    }
}

// Transposes four rows of four in registers.
MEZZO_INLINE void transpose(FloatN<4> (&r)[4]) {
    const FloatN<4> a = __builtin_shufflevector(r[0], r[1], 0, 4, 1, 5);
    const FloatN<4> b = __builtin_shufflevector(r[2], r[3], 0, 4, 1, 5);
    const FloatN<4> c = __builtin_shufflevector(r[0], r[1], 2, 6, 3, 7);
    const FloatN<4> d = __builtin_shufflevector(r[2], r[3], 2, 6, 3, 7);
    r[0] = __builtin_shufflevector(a, b, 0, 1, 4, 5);
    r[1] = __builtin_shufflevector(a, b, 2, 3, 6, 7);
    r[2] = __builtin_shufflevector(c, d, 0, 1, 4, 5);
    r[3] = __builtin_shufflevector(c, d, 2, 3, 6, 7);
}

// Source contiguous along k: four (G = 4) or two lines at a time, so that few cache lines are live at once.
template <int P, int G, class T>
MEZZO_INLINE void pack_lines(const T* src, std::int64_t ld, std::int64_t width, std::int64_t k, float* dst) {
    const T *s0 = src, *s1 = width > 1 ? src + ld : src, *s2 = width > 2 ? src + 2 * ld : src,
            *s3 = width > 3 ? src + 3 * ld : src;
    for (std::int64_t p = 0; p < k; p += 4) {
        const std::int64_t left = smaller(4, k - p);
        FloatN<4> r[4] = {};
        if (left == 4) {
            r[0] = load<4>(s0 + p);
            if (width > 1) r[1] = load<4>(s1 + p);
            if (G > 2 && width > 2) r[2] = load<4>(s2 + p);
            if (G > 2 && width > 3) r[3] = load<4>(s3 + p);
        } else {
            r[0] = load_first<4>(s0 + p, left);
            if (width > 1) r[1] = load_first<4>(s1 + p, left);
            if (G > 2 && width > 2) r[2] = load_first<4>(s2 + p, left);
            if (G > 2 && width > 3) r[3] = load_first<4>(s3 + p, left);
        }
        transpose(r);
        float* to = dst + p * P;
        for (std::int64_t q = 0; q < left; ++q) __builtin_memcpy(to + q * P, &r[q], G * sizeof(float));
    }
}

template <int P, class T>
MEZZO_INLINE void pack_along(const T* src, std::int64_t ld, std::int64_t width, std::int64_t k, float* dst) {
    for (int i = 0; i + 4 <= P; i += 4)
        if (i < width)
            pack_lines<P, 4>(src + i * ld, ld, width - i, k, dst + i);
        else
            for (std::int64_t p = 0; p < k; ++p) store<4>(dst + p * P + i, FloatN<4>{});
    if constexpr (P % 4 != 0) {
        constexpr int i = P - 2;
        if (i < width)
            pack_lines<P, 2>(src + i * ld, ld, width - i, k, dst + i);
        else
            for (std::int64_t p = 0; p < k; ++p) store<2>(dst + p * P + i, FloatN<2>{});
    }
}

template <int P> void pack(const Operand& x, std::int64_t width, std::int64_t k, float* dst) {
    constexpr std::int64_t block =
        64;  // steps per pass over all panels: their source rows stay in the TLB and L1
    with_type(x.type, x.data, [&](const auto* data) {
        if (x.along_k) {
            for (std::int64_t i = 0; i < width; i += P)
                pack_along<P>(data + i * x.ld, x.ld, smaller(P, width - i), k, dst + i * k);
            return;
        }
        for (std::int64_t p = 0; p < k; p += block)
            for (std::int64_t i = 0; i < width; i += P)
                pack_across<P>(data + p * x.ld + i, x.ld, smaller(P, width - i), smaller(block, k - p),
                               dst + i * k + p * P);
    });
}

// ---- register tile: R rows of C vectors stay in registers while k runs

template <int R, int C> void micro_kernel(std::int64_t k, const float* a, const float* b, float* t,
                                          std::int64_t ldt, bool accumulate) {
    // The tile's old sums are fetched while k runs and added at the end, so that no multiply waits for them.
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) __builtin_prefetch(t + r * ldt);
    Vector sum[R][C] = {};
    for (std::int64_t p = 0; p < k; ++p, a += mr, b += nr) {
        Vector y[C];
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) y[c] = load<lanes>(b + c * lanes);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const Vector x = broadcast<lanes>(a[r]);
#pragma GCC unroll 8
            for (int c = 0; c < C; ++c) sum[r][c] += x * y[c];
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) {
            float* to = t + r * ldt + c * lanes;
            store<lanes>(to, accumulate ? sum[r][c] + load<lanes>(to) : sum[r][c]);
        }
}

using MicroKernel = void (*)(std::int64_t, const float*, const float*, float*, std::int64_t, bool);

// The kernel for `rows` <= R and `vectors` <= C.
template <int R, int C> MEZZO_INLINE MicroKernel pick(std::int64_t rows, std::int64_t vectors) {
    if constexpr (C > 1) {
        if (vectors < C) return pick<R, C - 1>(rows, vectors);
    }
    if constexpr (R > 1) {
        if (rows < R) return pick<R - 1, C>(rows, vectors);
    }
    return micro_kernel<R, C>;
}

template <int = 0> void tile(const float* a, const float* b, std::int64_t panel_k, std::int64_t k,
                             std::int64_t rows, std::int64_t columns, float* t, std::int64_t ldt,
                             bool accumulate) {
    for (std::int64_t j = 0; j < columns; j += nr) {
        const std::int64_t vectors = smaller(nr / lanes, (columns - j + lanes - 1) / lanes);
        const MicroKernel full = pick<mr, nr / lanes>(mr, vectors);
        std::int64_t i = 0;
        for (; i + mr <= rows; i += mr)
            full(k, a + i * panel_k, b + j * panel_k, t + i * ldt + j, ldt, accumulate);
        if (i < rows)
            pick<mr, nr / lanes>(rows - i, vectors)(k, a + i * panel_k, b + j * panel_k, t + i * ldt + j, ldt,
                                                    accumulate);
    }
}

// ---- few rows: y is read once, in place

// y's rows run along the result: four of them at a time are added into R rows of t.
template <int R, class T> void skinny_across(const float* x, std::int64_t ldx, const T* y, std::int64_t ldy,
                                             std::int64_t width, std::int64_t k, float* t, std::int64_t ldt) {
    for (std::int64_t p = 0; p < k || p == 0; p += 4) {
        const std::int64_t left = smaller(4, k - p);
        float f[R][4] = {};
        const T* row[4] = {};
        for (int q = 0; q < left; ++q) {
            row[q] = y + (p + q) * ldy;
            for (int r = 0; r < R; ++r) f[r][q] = x[r * ldx + p + q];
        }
        for (std::int64_t j = 0; j < width; j += lanes) {
            const std::int64_t columns = smaller(lanes, width - j);
            Vector v[4] = {};
#pragma GCC unroll 4
            for (int q = 0; q < 4; ++q)
                if (q < left)
                    v[q] =
                        columns == lanes ? load<lanes>(row[q] + j) : load_first<lanes>(row[q] + j, columns);
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) {
                float* to = t + r * ldt + j;
                Vector sum = p == 0 ? Vector{} : load<lanes>(to);
#pragma GCC unroll 4
                for (int q = 0; q < 4; ++q) sum += broadcast<lanes>(f[r][q]) * v[q];
                store<lanes>(to, sum);
            }
        }
    }
}

MEZZO_INLINE float horizontal_sum(const Vector& v) {
    float f[lanes];
    store<lanes>(f, v);
#pragma GCC unroll 4
    for (int n = lanes / 2; n > 0; n /= 2)
#pragma GCC unroll 8
        for (int i = 0; i < n; ++i) f[i] += f[i + n];
    return f[0];
}

// y's lines run along k: dot products of R rows of x with J lines of y. x is zero behind k.
template <int R, int J, class T> MEZZO_INLINE void dots(const float* x, std::int64_t ldx, const T* y,
                                                        std::int64_t ldy, std::int64_t k, float* t,
                                                        std::int64_t ldt) {
    Vector sum[R][J] = {};
    for (std::int64_t p = 0; p < k; p += lanes) {
        Vector u[R];
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) u[r] = load<lanes>(x + r * ldx + p);
#pragma GCC unroll 8
        for (int j = 0; j < J; ++j) {
            const T* from = y + j * ldy + p;
            const Vector v = p + lanes <= k ? load<lanes>(from) : load_first<lanes>(from, k - p);
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) sum[r][j] += u[r] * v;
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int j = 0; j < J; ++j) t[r * ldt + j] = horizontal_sum(sum[r][j]);
}

// Two rows of x at a time: more would not leave enough registers for the sums of four lines.
template <int R, int J, class T> MEZZO_INLINE void dots_by_pairs(const float* x, std::int64_t ldx, const T* y,
                                                                 std::int64_t ldy, std::int64_t k, float* t,
                                                                 std::int64_t ldt) {
    if constexpr (R <= 2) {
        dots<R, J>(x, ldx, y, ldy, k, t, ldt);
    } else {
        dots<2, J>(x, ldx, y, ldy, k, t, ldt);
        dots<R - 2, J>(x + 2 * ldx, ldx, y, ldy, k, t + 2 * ldt, ldt);
    }
}

template <int R, class T> void skinny_along(const float* x, std::int64_t ldx, const T* y, std::int64_t ldy,
                                            std::int64_t width, std::int64_t k, float* t, std::int64_t ldt) {
    constexpr int step = R == 1 ? 8 : 4;
    std::int64_t j = 0;
    for (; j + step <= width; j += step) dots_by_pairs<R, step>(x, ldx, y + j * ldy, ldy, k, t + j, ldt);
    for (; j < width; ++j) dots_by_pairs<R, 1>(x, ldx, y + j * ldy, ldy, k, t + j, ldt);
}

template <int R> MEZZO_INLINE void skinny_rows(const float* x, std::int64_t ldx, const Operand& y,
                                               std::int64_t width, std::int64_t k, float* t,
                                               std::int64_t ldt) {
    with_type(y.type, y.data, [&](const auto* data) {
        if (y.along_k)
            skinny_along<R>(x, ldx, data, y.ld, width, k, t, ldt);
        else
            skinny_across<R>(x, ldx, data, y.ld, width, k, t, ldt);
    });
}

template <int = 0> void skinny(const float* x, std::int64_t ldx, std::int64_t rows, const Operand& y,
                               std::int64_t width, std::int64_t k, float* t, std::int64_t ldt) {
    for (std::int64_t i = 0; i < rows; i += 4) {
        const float* from = x + i * ldx;
        float* to = t + i * ldt;
        switch (smaller(4, rows - i)) {
            case 1:
                skinny_rows<1>(from, ldx, y, width, k, to, ldt);
                break;
            case 2:
                skinny_rows<2>(from, ldx, y, width, k, to, ldt);
                break;
            case 3:
                skinny_rows<3>(from, ldx, y, width, k, to, ldt);
                break;
            default:
                skinny_rows<4>(from, ldx, y, width, k, to, ldt);
        }
    }
}

// ---- epilogue

template <Activation activation> MEZZO_INLINE Vector activate(Vector v) {
    if constexpr (activation == Activation::relu) return relu<lanes>(v);
    if constexpr (activation == Activation::gelu) return gelu<lanes>(v);
    if constexpr (activation == Activation::gelu_tanh) return gelu_tanh<lanes>(v);
    return v;
}

// One vector of `count` <= lanes elements at column j of a row.
template <Activation activation, bool full, class T>
MEZZO_INLINE void finish(const Epilogue& e, const float* t, T* c, T* pre, std::int64_t j,
                         std::int64_t count) {
    Vector v = load<lanes>(t + j) * e.alpha;
    if (e.bias) v += full ? load<lanes>(e.bias + j) : load_first<lanes>(e.bias + j, count);
    if (e.beta != 0.0f) v += e.beta * (full ? load<lanes>(c + j) : load_first<lanes>(c + j, count));
    if (pre) full ? store<lanes>(pre + j, v) : store_first<lanes>(pre + j, v, count);
    v = activate<activation>(v);
    full ? store<lanes>(c + j, v) : store_first<lanes>(c + j, v, count);
}

template <Activation activation, class T> void epilogue_rows(const Epilogue& e) {
    for (std::int64_t i = 0; i < e.rows; ++i) {
        const float* t = e.t + i * e.ldt;
        T* c = static_cast<T*>(e.c) + i * e.ldc;
        T* pre = e.pre_activation ? static_cast<T*>(e.pre_activation) + i * e.ldc : nullptr;
        std::int64_t j = 0;
        for (; j + lanes <= e.columns; j += lanes) finish<activation, true>(e, t, c, pre, j, lanes);
        if (j < e.columns) finish<activation, false>(e, t, c, pre, j, e.columns - j);
    }
}

template <Activation activation> void epilogue_type(const Epilogue& e) {
    with_type(e.c_type, nullptr, [&](const auto* c) {
        epilogue_rows<activation, std::remove_cv_t<std::remove_pointer_t<decltype(c)>>>(e);
    });
}

template <int = 0> void epilogue(const Epilogue& e) {
    switch (e.activation) {
        case Activation::none:
            return epilogue_type<Activation::none>(e);
        case Activation::relu:
            return epilogue_type<Activation::relu>(e);
        case Activation::gelu:
            return epilogue_type<Activation::gelu>(e);
        case Activation::gelu_tanh:
            return epilogue_type<Activation::gelu_tanh>(e);
    }
}

constexpr GemmKernels kernels = {mr,       nr,     MEZZO_KC,   MEZZO_MC, MEZZO_NC, pack<mr>,
                                 pack<nr>, tile<>, epilogue<>, skinny<>, lanes};

}  // namespace
}  // namespace mezzo::cpu
