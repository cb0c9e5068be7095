// Storage of an optimizer's float32 numbers in less than 32 bits, for every device.
#pragma once

#include "kernels/functor_math.h"

namespace mezzo {

// 256 numbers in 8 bits: each is its code's value times the largest magnitude of the block (arXiv 2110.02861,
// section 2). All zero bytes are zeros. The last block of a tensor is filled up with zeros. A block with an
// infinite number or NaN becomes NaN.
struct Block8 {
    static constexpr int size = 256;
    std::uint8_t code[size];
    float maximum;
};
static_assert(sizeof(Block8) == Block8::size + sizeof(float));

constexpr std::int64_t block8_count(std::int64_t numel) { return (numel + Block8::size - 1) / Block8::size; }

}  // namespace mezzo

namespace mezzo::functors {
MEZZO_FUNCTORS_OPEN

MEZZO_HD float number_of(std::uint32_t bits) { return __builtin_bit_cast(float, bits); }
MEZZO_HD std::uint32_t bits_of(float x) { return __builtin_bit_cast(std::uint32_t, x); }

// A float32 number as two halves: `high` is the number as bfloat16, rounded to nearest, ties away from zero,
// and `low` the signed rest, so that its bits are (high << 16) + low modulo 2^32. Unlike with ties to even,
// every number has exactly one such pair. NaN is stored as 0x7fc00000.
struct Halves {
    std::uint16_t high, low;
};
MEZZO_HD Halves halves_of(std::uint32_t bits) {
    const std::uint32_t u = (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc00000u : bits;
    return {static_cast<std::uint16_t>((u + 0x8000u) >> 16), static_cast<std::uint16_t>(u)};
}
MEZZO_HD std::uint32_t joined(std::uint16_t high, std::uint16_t low) {
    return (std::uint32_t(high) << 16) + low - ((low & 0x8000u) << 1);
}

// Stochastic rounding to bfloat16: to one of the two neighbours, so that the mean is the number. `random` is
// 16 random bits. Infinity and NaN stay, and a finite number does not become infinite.
MEZZO_HD std::uint16_t rounded_stochastically(std::uint32_t bits, std::uint32_t random) {
    const std::uint32_t sum = (bits + random) >> 16, up = (sum & 0x7f80u) == 0x7f80u ? sum - 1 : sum;
    const bool finite = (bits & 0x7f800000u) != 0x7f800000u, nan = (bits & 0x7fffffffu) > 0x7f800000u;
    return static_cast<std::uint16_t>(finite ? up : bits >> 16 | (nan ? 0x40u : 0u));
}
// Philox key of the random bits for state k of parameter `number` in the update after `steps` others. Element
// i of the parameter takes half-word i % 8 of block i / 8 (core/philox.h).
MEZZO_HD std::uint64_t rounding_key(std::uint32_t number, int k, float steps) {
    const std::uint64_t stream = std::uint64_t(number) * 4 + static_cast<std::uint64_t>(k);
    return 0x5bd1e995a4093822u ^
           (stream << 32 | static_cast<std::uint32_t>(static_cast<std::uint64_t>(steps)));
}

// Dynamic tree code of `bits` bits for [0, 1], arXiv 2110.02861: the position i of a code's leading one
// chooses a decade, the bits behind it one of 2^i equal parts of the decade's upper nine tenths. The code's
// value is the middle of that part. 0 is 0, and the largest code is 1.
//   value(c) = 10^(i + 1 - bits) (0.1 + 0.9 (c - 2^i + 0.5) / 2^i),  2^i <= c < 2^(i + 1)
MEZZO_HD constexpr double ten_to(int n) {
    double power = 1;
    for (; n < 0; ++n) power /= 10;
    for (; n > 0; --n) power *= 10;
    return power;
}

template <int bits, int i = 0> MEZZO_HD void decade_of_code(float c, float& slope, float& base) {
    constexpr double unit = ten_to(i + 1 - bits);
    constexpr float own_slope = static_cast<float>(unit * 0.9 / (1 << i)),
                    own_base = static_cast<float>(unit * (0.45 / (1 << i) - 0.8));
    slope = c >= float(1 << i) ? own_slope : slope;
    base = c >= float(1 << i) ? own_base : base;
    if constexpr (i + 1 < bits) decade_of_code<bits, i + 1>(c, slope, base);
}
template <int bits> MEZZO_HD float dynamic_value(float code) {
    float slope = 0, base = 0;
    decade_of_code<bits>(code, slope, base);
    return code == float((1 << bits) - 1) ? 1.0f : slope * code + base;
}

// Selects the decade whose codes are the nearest to x: `slope` parts per unit, and `first`, its first code.
template <int bits, int i = 1> MEZZO_HD void decade_of_value(float x, float& slope, float& first) {
    constexpr double unit = ten_to(i + 1 - bits);
    constexpr float least = static_cast<float>(unit * (0.1 + 0.18 / (1 << i))),
                    own_slope = static_cast<float>((1 << i) / (0.9 * unit));
    slope = x >= least ? own_slope : slope;
    first = x >= least ? float(1 << i) : first;
    if constexpr (i + 1 < bits) decade_of_value<bits, i + 1>(x, slope, first);
}
// The code nearest to x in [0, 1], before its fraction is cut off; that of NaN is any. x > 0 gets at least
// `least`, 0 or 1. All is float, because compilers vectorise no mixture of selections.
template <int bits> MEZZO_HD float dynamic_code(float x, float least) {
    constexpr float top = float((1 << bits) - 1),
                    half_of_first = static_cast<float>(0.275 * ten_to(1 - bits));
    constexpr float almost_one =
        static_cast<float>(1 - 0.675 / (1 << (bits - 1)));  // 1 is nearest from here on
    float slope = 0, first = 1;
    decade_of_value<bits>(x, slope, first);
    const float part = x * slope + first * static_cast<float>(8.0 / 9), last = first + first - 1.0f;
    const float below_top = last < top - 1.0f ? last : top - 1.0f;
    float c = part < below_top ? part : below_top;
    c = c > first ? c : first;
    c = x >= almost_one ? top : c;
    const float small = x > 0.0f ? least : 0.0f;
    return x >= half_of_first ? c : small;
}

// A block's numbers are signed (sign and 7 bits) or not (8 bits). Second moments are not signed, and an
// update divides by their square root: of them only 0 has code 0. Functions between codes and numbers take a
// code as float. A signed code is negative when it is read, and plus 128 when it is written.
MEZZO_HD float float_of_code(std::uint8_t code, bool with_sign) {
    const std::int32_t c = code, negative = 128 - c;
    return static_cast<float>(with_sign && c > 127 ? negative : c);
}
template <bool with_sign> MEZZO_HD float number_of_code(float code, float maximum) {
    if (!with_sign) return dynamic_value<8>(code) * maximum;
    const float value = dynamic_value<7>(math::abs(code)) * maximum;
    return code < 0.0f ? -value : value;
}
// inverse: 1 / maximum, or 0 if the maximum is less than the least normal number, as all are 0 then.
MEZZO_HD float inverse_of_maximum(float maximum) { return maximum >= 0x1p-126f ? 1 / maximum : 0.0f; }
template <bool with_sign> MEZZO_HD float code_of_number(float x, float inverse) {
    if (!with_sign) return dynamic_code<8>(x * inverse, 1);
    return dynamic_code<7>(math::abs(x) * inverse, 0) + (x < 0.0f ? 128.0f : 0.0f);
}
MEZZO_HD std::uint8_t stored_code(float code) {
    return static_cast<std::uint8_t>(static_cast<std::int32_t>(code));
}

MEZZO_HD float from_code(std::uint32_t code, bool with_sign, float maximum) {
    const float c = float_of_code(static_cast<std::uint8_t>(code), with_sign);
    return with_sign ? number_of_code<true>(c, maximum) : number_of_code<false>(c, maximum);
}
MEZZO_HD std::uint8_t to_code(float x, bool with_sign, float inverse) {
    return stored_code(with_sign ? code_of_number<true>(x, inverse) : code_of_number<false>(x, inverse));
}

// The first n numbers of a block. Bytes are converted in loops of their own: vectorised together with the
// rest, four times as much code would be unrolled.
template <bool with_sign>
MEZZO_HD void read_block(float* __restrict to, const Block8& block, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) to[i] = float_of_code(block.code[i], with_sign);
    const float maximum = block.maximum;
    for (std::int64_t i = 0; i < n; ++i) to[i] = number_of_code<with_sign>(to[i], maximum);
}
template <bool with_sign>
MEZZO_HD void write_block(Block8& block, const float* __restrict from, std::int64_t n) {
    std::uint32_t largest = 0;  // as bits, of which those of NaN are the largest
    for (std::int64_t i = 0; i < n; ++i) {
        const std::uint32_t magnitude = bits_of(from[i]) & 0x7fffffffu;
        largest = magnitude > largest ? magnitude : largest;
    }
    block.maximum = number_of(largest);
    const float inverse = inverse_of_maximum(block.maximum);
    float codes[Block8::size];
    for (std::int64_t i = 0; i < n; ++i) codes[i] = code_of_number<with_sign>(from[i], inverse);
    for (std::int64_t i = n; i < Block8::size; ++i) codes[i] = 0;
    for (int i = 0; i < Block8::size; ++i) block.code[i] = stored_code(codes[i]);
}

MEZZO_FUNCTORS_CLOSE
}  // namespace mezzo::functors
