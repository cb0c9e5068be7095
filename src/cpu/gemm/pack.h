// Packing of GEMM operands. A panel is P lines of op(A) or columns of op(B), stored slot by slot. A slot is
// 32 bits of each line: one step of k as float, or (MEZZO_DEPTH 2) two steps as bfloat16.
#pragma once

#include <utility>

#include "cpu/isa/isa_tables.h"
#include "cpu/isa/vector.h"

namespace mezzo::cpu {
namespace {

constexpr int lanes = MEZZO_LANES, depth = MEZZO_DEPTH;
using Vector = FloatN<lanes>;

// Calls f with p as a pointer to the element type. Only bfloat16 is packed in pairs.
template <class F> MEZZO_INLINE void with_type(Dtype type, const void* p, const F& f) {
    if (type == Dtype::bfloat16) f(static_cast<const bfloat16_t*>(p));
    if constexpr (depth == 1) {
        if (type == Dtype::float32) f(static_cast<const float*>(p));
        if (type == Dtype::float16) f(static_cast<const float16_t*>(p));
    }
}

MEZZO_INLINE std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

// ---- source contiguous along the panel

// One slot of each of N neighbouring lines, of which `count` exist if that is less than N; the rest are zero.
// `second` is the row of the odd step, or null if k ends before it.
template <int N, class T>
MEZZO_INLINE FloatN<N> slots_across(const T* first, const T* second, std::int64_t count) {
    if constexpr (depth == 1) {
        return count >= N ? load<N>(first) : load_first<N>(first, count);
    } else {  // bfloat16 widens by shifting
        const UintN<N> even = (UintN<N>)(count >= N ? load<N>(first) : load_first<N>(first, count));
        UintN<N> odd = {};
        if (second) odd = (UintN<N>)(count >= N ? load<N>(second) : load_first<N>(second, count));
        return (FloatN<N>)(even >> 16 | odd);
    }
}

// Stores full vectors, the last of which may overlap the one before. Lines that the last panel lacks are zero
// up to the next multiple of a vector; what lies behind is not set.
template <int P, class T>
MEZZO_INLINE void pack_across(const T* src, std::int64_t ld, std::int64_t width, std::int64_t k, float* dst) {
    constexpr int pow2 = P >= 16 ? 16 : P >= 8 ? 8 : 4;
    constexpr int n = pow2 < lanes ? pow2 : lanes;
    for (std::int64_t p = 0; p < k; p += depth, src += depth * ld, dst += P) {
        const T* second = depth == 2 && p + 1 < k ? src + ld : nullptr;
        if (width == P) {
#pragma GCC unroll 8
            for (int i = 0; i < P; i += n) {
                const int at = i + n <= P ? i : P - n;
                store<n>(dst + at, slots_across<n>(src + at, second ? second + at : second, n));
            }
        } else {
            for (std::int64_t i = 0; i < width; i += n) {
                const FloatN<n> v = slots_across<n>(src + i, second ? second + i : second, width - i);
                i + n <= P ? store<n>(dst + i, v) : store_first<n>(dst + i, v, P - i);
            }
        }
    }
}

// ---- source contiguous along k

// Lane l of the new a is lane l of a if bit D of l is 0, else lane l - D of b; lane l of the new b is lane l
// + D of a if bit D of l is 0, else lane l of b.
template <int N, int D, std::size_t... L>
MEZZO_INLINE void exchange(FloatN<N>& a, FloatN<N>& b, std::index_sequence<L...>) {
    const FloatN<N> low = __builtin_shufflevector(a, b, (int(L) & D ? N + int(L) - D : int(L))...);
    const FloatN<N> high = __builtin_shufflevector(a, b, (int(L) & D ? N + int(L) : int(L) + D)...);
    a = low;
    b = high;
}

// Transposes N rows of N in registers: swaps quarters, then the quarters of those, and so on.
template <int N, int D = N / 2> MEZZO_INLINE void transpose(FloatN<N> (&r)[N]) {
#pragma GCC unroll 16
    for (int i = 0; i < N; ++i)
        if (!(i & D)) exchange<N, D>(r[i], r[i + D], std::make_index_sequence<N>());
    if constexpr (D > 1) transpose<N, D / 2>(r);
}

// N slots of a line of `k` steps, from slot p on; zero behind the end of the line.
template <int N, class T> MEZZO_INLINE FloatN<N> slots_along(const T* line, std::int64_t p, std::int64_t k) {
    const T* from = line + p * depth;
    const std::int64_t left = k - p * depth;
    if constexpr (depth == 1) {
        return left >= N ? load<N>(from) : load_first<N>(from, left);
    } else {
        FloatN<N> v = {};
        if (left >= N * depth)
            __builtin_memcpy(&v, from, sizeof v);
        else
            __builtin_memcpy(&v, from, static_cast<std::size_t>(left) * sizeof(T));
        return v;
    }
}

// Packs G <= lanes lines of a panel of P, of which only `width` exist unless `full`: reads whole vectors
// along k and transposes them. Panels of all widths share it.
template <int G, bool full, class T> MEZZO_SHARED void pack_lines(int P, const T* src, std::int64_t ld,
                                                                  std::int64_t width, std::int64_t k,
                                                                  float* dst) {
    const std::int64_t slots = (k + depth - 1) / depth;
    for (std::int64_t p = 0; p < slots; p += lanes) {
        FloatN<lanes> r[lanes] = {};
        if constexpr (full) {
#pragma GCC unroll 16
            for (int i = 0; i < G; ++i) r[i] = slots_along<lanes>(src + i * ld, p, k);
        } else {
#pragma GCC unroll 1
            for (int i = 0; i < width; ++i) r[i] = slots_along<lanes>(src + i * ld, p, k);
        }
        transpose<lanes>(r);
        const std::int64_t left = slots - p;
        float* to = dst + p * P;
        // A store that is wider than the group also writes to the next slot, whose own values follow later.
#pragma GCC unroll 16
        for (int q = 0; q < lanes; ++q)
            if (q < left - 1 || (q < left && G == lanes))
                store<lanes>(to + q * P, r[q]);
            else if (q < left)
                __builtin_memcpy(to + q * P, &r[q], G * sizeof(float));
    }
}

template <int P, class T>
MEZZO_INLINE void pack_along(const T* src, std::int64_t ld, std::int64_t width, std::int64_t k, float* dst) {
    static_assert(P % lanes == 0 || P < lanes);
    constexpr int group = P < lanes ? P : lanes;
    for (int i = 0; i < P && i < width; i += group)
        if (width - i >= group)
            pack_lines<group, true>(P, src + i * ld, ld, width - i, k, dst + i);
        else
            pack_lines<group, false>(P, src + i * ld, ld, width - i, k, dst + i);
}

template <int P> void pack(const Operand& x, std::int64_t width, std::int64_t k, float* dst) {
    constexpr std::int64_t block =
        64;  // steps per pass over all panels: their source rows stay in the TLB and L1
    const std::int64_t slots = (k + depth - 1) / depth;
    with_type(x.type, x.data, [&](const auto* data) {
        if (x.along_k) {
            for (std::int64_t i = 0; i < width; i += P)
                pack_along<P>(data + i * x.ld, x.ld, smaller(P, width - i), k, dst + i * slots);
            return;
        }
        for (std::int64_t p = 0; p < k; p += block)
            for (std::int64_t i = 0; i < width; i += P)
                pack_across<P>(data + p * x.ld + i, x.ld, smaller(P, width - i), smaller(block, k - p),
                               dst + i * slots + p / depth * P);
    });
}

}  // namespace
}  // namespace mezzo::cpu
