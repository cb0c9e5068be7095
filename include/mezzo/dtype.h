// Element types: the eight dtypes, the two 16-bit storage types, and how types combine.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "mezzo/cpp20.h"

namespace mezzo {

enum class Dtype : std::uint8_t { float16, bfloat16, float32, float64, int32, int64, uint8, boolean };

inline constexpr int dtype_count = 8;
inline constexpr Dtype float16 = Dtype::float16;
inline constexpr Dtype bfloat16 = Dtype::bfloat16;
inline constexpr Dtype float32 = Dtype::float32;
inline constexpr Dtype float64 = Dtype::float64;
inline constexpr Dtype int32 = Dtype::int32;
inline constexpr Dtype int64 = Dtype::int64;
inline constexpr Dtype uint8 = Dtype::uint8;
inline constexpr Dtype boolean = Dtype::boolean;

// IEEE 754 binary16 as storage: conversion to float is exact, from float rounds to nearest even.
struct float16_t {
    std::uint16_t bits = 0;
    constexpr float16_t() = default;
    constexpr explicit float16_t(float value) : bits(from(value)) {}
    constexpr explicit operator float() const {
        const std::uint32_t sign = std::uint32_t(bits & 0x8000u) << 16;
        const std::uint32_t exponent = bits >> 10 & 31u, mantissa = bits & 1023u;
        if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | mantissa << 13);
        if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
        return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(float(mantissa) * 0x1p-24f));
    }
    [[nodiscard]] static constexpr float16_t from_bits(std::uint16_t b) {
        float16_t h;
        h.bits = b;
        return h;
    }

private:
    static constexpr std::uint16_t from(float value) {
        const std::uint32_t u = std::bit_cast<std::uint32_t>(value);
        const std::uint32_t sign = u >> 16 & 0x8000u, magnitude = u & 0x7fffffffu;
        if (magnitude > 0x7f800000u)
            return std::uint16_t(sign | 0x7e00u | (magnitude >> 13 & 0x1ffu));  // quiet NaN
        if (magnitude >= 0x477ff000u) return std::uint16_t(sign | 0x7c00u);     // rounds to infinity
        if (magnitude < 0x38800000u)  // subnormal: adding 0.5 makes the FPU round at 2^-24
            return std::uint16_t(
                sign | (std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u));
        return std::uint16_t(sign | ((magnitude + 0xfffu + (magnitude >> 13 & 1u)) - 0x38000000u) >> 13);
    }
};

// The upper half of a float32 as storage: conversion to float is exact, from float rounds to nearest even.
struct bfloat16_t {
    std::uint16_t bits = 0;
    constexpr bfloat16_t() = default;
    constexpr explicit bfloat16_t(float value) : bits(from(value)) {}
    constexpr explicit operator float() const { return std::bit_cast<float>(std::uint32_t(bits) << 16); }
    [[nodiscard]] static constexpr bfloat16_t from_bits(std::uint16_t b) {
        bfloat16_t h;
        h.bits = b;
        return h;
    }

private:
    static constexpr std::uint16_t from(float value) {
        const std::uint32_t u = std::bit_cast<std::uint32_t>(value);
        if ((u & 0x7fffffffu) > 0x7f800000u) return std::uint16_t(u >> 16 | 0x40u);  // quiet NaN
        return std::uint16_t((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
    }
};

[[nodiscard]] constexpr std::size_t size_of(Dtype dtype) {
    constexpr std::size_t sizes[dtype_count] = {2, 2, 4, 8, 4, 8, 1, 1};
    return sizes[static_cast<int>(dtype)];
}
[[nodiscard]] constexpr bool is_floating(Dtype dtype) { return dtype <= Dtype::float64; }
[[nodiscard]] constexpr bool is_16bit(Dtype dtype) { return dtype <= Dtype::bfloat16; }
[[nodiscard]] const char* name(Dtype dtype);  // "float16", "int64", ...

// The dtype that holds both: floating wins over integral, float16 with bfloat16 gives float32 (PyTorch's
// table).
[[nodiscard]] Dtype promote(Dtype a, Dtype b);

// The dtype of a C++ element type: dtype_of<float>() == float32.
template <class T> [[nodiscard]] constexpr Dtype dtype_of();
template <> constexpr Dtype dtype_of<float16_t>() { return float16; }
template <> constexpr Dtype dtype_of<bfloat16_t>() { return bfloat16; }
template <> constexpr Dtype dtype_of<float>() { return float32; }
template <> constexpr Dtype dtype_of<double>() { return float64; }
template <> constexpr Dtype dtype_of<std::int32_t>() { return int32; }
template <> constexpr Dtype dtype_of<std::int64_t>() { return int64; }
template <> constexpr Dtype dtype_of<std::uint8_t>() { return uint8; }
template <> constexpr Dtype dtype_of<bool>() { return boolean; }

}  // namespace mezzo
