// The inner loops of optimizer steps, a part of loops_kernel.h.
#pragma once

#include "cpu/elementwise/loops.h"
#include "kernels/narrow_state.h"
#include "kernels/optimizers.h"

namespace mezzo::cpu {
namespace {

template <class T> bool all_finite(const T* x, std::int64_t n, T factor) {
    constexpr T largest = sizeof(T) == 4 ? T(__FLT_MAX__) : T(__DBL_MAX__);
    int bad = 0;
    for (std::int64_t i = 0; i < n; ++i) bad |= !(functors::math::abs(x[i] * factor) <= largest);
    return bad == 0;
}

// One way of a formula (Row::ways) over n elements.
template <class Row, class T, unsigned way> void update_elements(const UpdateLoop<T>& u) {
    const auto f = *static_cast<const typename Row::template Formula<T>*>(u.formula);
    constexpr unsigned used = Row::used(way);
    T* __restrict const p = u.param;
    T* __restrict const s0 = u.state[0];
    T* __restrict const s1 = u.state[1];
    T* __restrict const s2 = u.state[2];
    const T* __restrict const grad = u.grad;
    const T multiplier = u.multiplier;
    for (std::int64_t i = 0; i < u.n; ++i) {
        T s[max_optimizer_state] = {};
        if (used & 1) s[0] = s0[i];
        if (used & 2) s[1] = s1[i];
        if (used & 4) s[2] = s2[i];
        p[i] = f.update(p[i], grad[i] * multiplier, s, way);
        if (used & 1) s0[i] = s[0];
        if (used & 2) s1[i] = s[1];
        if (used & 4) s2[i] = s[2];
    }
}

template <class Row, class T, unsigned way = 0> void update(const UpdateLoop<T>& u) {
    if constexpr (way + 1 < Row::ways)
        if (u.way != way) return update<Row, T, way + 1>(u);
    update_elements<Row, T, way>(u);
}

// The entry of the table: null for double except in the unit for every CPU, to which RealLoops sends callers.
template <class Row, class T> constexpr auto update_loop() -> void (*)(const UpdateLoop<T>&) {
    if constexpr (sizeof(T) == 8 && !MEZZO_ISA_IS(portable))
        return nullptr;
    else
        return update<Row, T>;
}

void join_halves(float* __restrict dst, const std::uint16_t* __restrict high,
                 const std::uint16_t* __restrict low, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) dst[i] = functors::number_of(functors::joined(high[i], low[i]));
}

void split_halves(std::uint16_t* __restrict high, std::uint16_t* __restrict low, const float* __restrict x,
                  std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) {
        const functors::Halves halves = functors::halves_of(functors::bits_of(x[i]));
        high[i] = halves.high;
        low[i] = halves.low;
    }
}

typedef std::uint16_t HalfWord __attribute__((may_alias));

void round_stochastically(std::uint16_t* __restrict dst, const float* __restrict x,
                          const std::uint32_t* __restrict words, std::int64_t n) {
    const HalfWord* const random = reinterpret_cast<const HalfWord*>(words);
    for (std::int64_t i = 0; i < n; ++i)
        dst[i] = functors::rounded_stochastically(functors::bits_of(x[i]), random[i]);
}

template <bool with_sign> void read_signed_or_not(float* dst, const Block8* blocks, std::int64_t n) {
    for (; n > 0; n -= Block8::size, dst += Block8::size, ++blocks)
        functors::read_block<with_sign>(dst, *blocks, n < Block8::size ? n : Block8::size);
}
void read_blocks(float* dst, const Block8* blocks, std::int64_t n, bool with_sign) {
    (with_sign ? read_signed_or_not<true> : read_signed_or_not<false>)(dst, blocks, n);
}

template <bool with_sign> void write_signed_or_not(Block8* blocks, const float* x, std::int64_t n) {
    for (; n > 0; n -= Block8::size, x += Block8::size, ++blocks)
        functors::write_block<with_sign>(*blocks, x, n < Block8::size ? n : Block8::size);
}
void write_blocks(Block8* blocks, const float* x, std::int64_t n, bool with_sign) {
    (with_sign ? write_signed_or_not<true> : write_signed_or_not<false>)(blocks, x, n);
}

}  // namespace
}  // namespace mezzo::cpu
