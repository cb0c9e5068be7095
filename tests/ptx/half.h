// Bits of float16 and bfloat16, written for these tests: what the library converts is compared with them.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

namespace mezzo::ptx {

inline float from_bfloat(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t(bits) << 16); }

inline std::uint16_t to_bfloat(float x) {
    if (std::isnan(x)) return 0x7FFF;
    const auto bits = std::bit_cast<std::uint32_t>(x);
    return std::uint16_t((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

inline float decode_half(unsigned bits) {
    const int exponent = int(bits >> 10 & 31), fraction = int(bits & 1023);
    const float sign = (bits & 0x8000) != 0 ? -1.0f : 1.0f;
    if (exponent == 31) return fraction != 0 ? NAN : sign * INFINITY;
    return sign * (exponent == 0 ? std::ldexp(float(fraction), -24)
                                 : std::ldexp(float(fraction + 1024), exponent - 25));
}
inline float from_half(std::uint16_t bits) {
    static const auto table = [] {
        auto* const all = new std::array<float, 65536>;
        for (unsigned b = 0; b < all->size(); ++b) (*all)[b] = decode_half(b);
        return all;
    }();
    return (*table)[bits];
}

inline std::uint16_t to_half(float x) {
    if (std::isnan(x)) return 0x7FFF;
    const auto bits = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7FFFFFFF;
    const float size = std::bit_cast<float>(magnitude);
    if (size >= 65520) return std::uint16_t(sign | 0x7C00);
    if (size < 0x1p-14f) return std::uint16_t(sign | std::uint32_t(std::nearbyint(size * 0x1p24f)));
    const std::uint32_t rounded = (magnitude + 0xFFF + (magnitude >> 13 & 1)) >> 13;
    return std::uint16_t(sign | (rounded - (112u << 10)));  // the bias of the exponent is 15, not 127
}

}  // namespace mezzo::ptx
