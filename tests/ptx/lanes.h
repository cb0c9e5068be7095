// Building blocks of the table of instructions: functions of the lanes' values.
#pragma once

#include <bit>
#include <cfenv>
#include <tuple>
#include <type_traits>
#include <utility>

#include "tests/ptx/opcodes.h"
#include "tests/ptx/warp.h"

namespace mezzo::ptx {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using s8 = std::int8_t;
using s16 = std::int16_t;
using s32 = std::int32_t;
using s64 = std::int64_t;
using f32 = float;
using f64 = double;

// Calls f(lane) for each lane in the mask, in a loop that the compiler can turn into vectors if all take
// part.
template <class F> inline void each_lane(u32 mask, F f) {
    if (mask == all_lanes) {
#if defined(__clang__)
#pragma clang loop vectorize(assume_safety)
#else
#pragma GCC ivdep
#endif
        for (u32 l = 0; l < warp_size; ++l) f(l);
    } else {
        for (; mask != 0; mask &= mask - 1) f(u32(std::countr_zero(mask)));
    }
}

// Writes the bits of `mask` only.
inline void set_bits(u32& to, u32 bits, u32 mask) { to = (to & ~mask) | (bits & mask); }

// Results of F, a function object without state, from the sources.
template <class F, class D, class... S> struct Apply {
    template <std::size_t... k>
    static void apply(Warp& w, const Instruction& i, u32 mask, std::index_sequence<k...>) {
        D* const d = w.reg<D>(i.operands[0]);
        const std::tuple<const S*...> s{w.reg<S>(i.operands[k + 1])...};
        each_lane(mask, [=](u32 l) { d[l] = D(F{}(std::get<k>(s)[l]...)); });
    }
    static void execute(Warp& w, const Instruction& i, u32 mask) {
        apply(w, i, mask, std::index_sequence_for<S...>{});
    }
};

template <class F, class T> void compare(Warp& w, const Instruction& i, u32 mask) {
    const T *const x = w.reg<T>(i.operands[1]), *const y = w.reg<T>(i.operands[2]);
    u32 bits = 0;
    for (u32 l = 0; l < warp_size; ++l) bits |= u32(F{}(x[l], y[l])) << l;
    set_bits(w.predicate(i.operands[0]), bits, mask);
}

template <class F> void combine_predicates(Warp& w, const Instruction& i, u32 mask) {
    set_bits(w.predicate(i.operands[0]), F{}(w.predicate(i.operands[1]), w.predicate(i.operands[2])), mask);
}

// With another direction of rounding. The call through a volatile pointer keeps the compiler from moving
// arithmetic out.
template <int mode, Execute inner> void rounded(Warp& w, const Instruction& i, u32 mask) {
    std::fesetround(mode);
    Execute volatile call = inner;
    call(w, i, mask);
    std::fesetround(FE_TONEAREST);
}

// Adds entries to the table. Lambdas that it takes have no captures.
struct TableWriter {
    Opcodes& table;

    void raw(const std::string& name, Execute execute, std::vector<u8> bytes) {
        table[name] = {execute, std::move(bytes), Flow::next, -1, Vote::none};
    }
    template <class D, class... S, class F> void op(const std::string& name, F) {
        raw(name, &Apply<F, D, S...>::execute, {u8(sizeof(D)), u8(sizeof(S))...});
    }
    template <int mode, class D, class... S, class F> void rounded_op(const std::string& name, F) {
        raw(name, &rounded<mode, &Apply<F, D, S...>::execute>, {u8(sizeof(D)), u8(sizeof(S))...});
    }
    template <class T, class F> void comparison(const std::string& name, F) {
        raw("setp." + name, &compare<F, T>, {0, sizeof(T), sizeof(T)});
    }
    template <class F> void predicates(const std::string& name, F) {
        raw(name, &combine_predicates<F>, {0, 0, 0});
    }

    // lt, le, gt and ge of numbers; eq and ne of T, which are false for NaN.
    template <class T> void ordered(const std::string& type) {
        comparison<T>("eq." + type, [](T x, T y) { return x == y; });
        comparison<T>("ne." + type,
                      [](T x, T y) { return std::is_floating_point_v<T> ? x < y || x > y : x != y; });
        comparison<T>("lt." + type, [](T x, T y) { return x < y; });
        comparison<T>("le." + type, [](T x, T y) { return x <= y; });
        comparison<T>("gt." + type, [](T x, T y) { return x > y; });
        comparison<T>("ge." + type, [](T x, T y) { return x >= y; });
    }
};

}  // namespace mezzo::ptx
