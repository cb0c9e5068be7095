// Element types: the dtypes and their properties, the storage types of 16 and 8 bits, type promotion, and
// Scalar, the type of numbers next to tensors.
//
//   const Dtype wider = promote(float16, bfloat16);  // float32
//   const double largest = dtype_info(float16).max;  // 65504
//   y = x.to(bfloat16);
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <type_traits>
#include <utility>

#include "mezzo/cpp20.h"

// The 8-bit types convert in device code, too.
#ifdef __CUDACC__
#define MEZZO_HOST_DEVICE __host__ __device__
#else
#define MEZZO_HOST_DEVICE
#endif

#pragma GCC visibility push(default)

namespace mezzo {

// The lines of the table: float16, bfloat16, float32, float64, int32, int64, uint8, boolean, and for storage
// only int8, float8_e4m3fn, float8_e5m2, float8_e8m0fnu.
enum class Dtype : std::uint8_t {
#define MEZZO_DTYPE(name, ...) name,
#include "mezzo/dtypes.def"
#undef MEZZO_DTYPE
};

// Kind of a dtype. The order matters: promote() takes the later kind. storage: elements that are stored,
// copied and converted by to(), but not computed with.
enum class DtypeKind : std::uint8_t { boolean, integral, floating, storage };

#define MEZZO_DTYPE(name, ...) inline constexpr Dtype name = Dtype::name;
#include "mezzo/dtypes.def"
#undef MEZZO_DTYPE

inline constexpr Dtype all_dtypes[] = {
#define MEZZO_DTYPE(name, ...) Dtype::name,
#include "mezzo/dtypes.def"
#undef MEZZO_DTYPE
};
inline constexpr int dtype_count = sizeof all_dtypes / sizeof(Dtype);

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

namespace detail {
template <class To, class From> MEZZO_HOST_DEVICE constexpr To same_bits(From from) {
    return __builtin_bit_cast(To, from);  // std::bit_cast() is for host code only
}
// A float32 magnitude, given by its bits, as the code of a format with that many stored bits of significand
// and that exponent bias: rounded to nearest even, as if the exponent had no upper end.
template <int mantissa, int bias>
MEZZO_HOST_DEVICE constexpr std::uint32_t rounded_code(std::uint32_t magnitude) {
    constexpr int cut = 23 - mantissa;
    // Subnormal codes are 2^(1 - bias - mantissa) apart: adding `shift` makes the FPU round there.
    constexpr std::uint32_t least_normal = std::uint32_t(128 - bias) << 23,
                            shift = std::uint32_t(151 - bias - mantissa) << 23;
    if (magnitude < least_normal)
        return same_bits<std::uint32_t>(same_bits<float>(magnitude) + same_bits<float>(shift)) - shift;
    const std::uint32_t half = (1u << (cut - 1)) - 1 + (magnitude >> cut & 1u);
    return (magnitude + half - (std::uint32_t(127 - bias) << 23)) >> cut;
}
// The value of such a code, given without its sign; it is finite.
template <int mantissa, int bias> MEZZO_HOST_DEVICE constexpr float value_of_code(std::uint32_t code) {
    if (code >> mantissa != 0)
        return same_bits<float>((code << (23 - mantissa)) + (std::uint32_t(127 - bias) << 23));
    return float(code) * same_bits<float>(std::uint32_t(128 - bias - mantissa) << 23);
}
}  // namespace detail

// OCP's E4M3 (arXiv 2209.05433) as storage: sign, 4 bits of exponent, 3 of significand; +-0 to +-448 and NaN.
// Conversion to float is exact. From float it rounds to nearest even, larger values and infinities become
// +-448, as in PyTorch 2.15.
struct float8_e4m3fn_t {
    std::uint8_t bits = 0;
    constexpr float8_e4m3fn_t() = default;
    MEZZO_HOST_DEVICE constexpr explicit float8_e4m3fn_t(float value) : bits(from(value)) {}
    MEZZO_HOST_DEVICE constexpr explicit operator float() const {
        const std::uint32_t code = bits & 0x7fu;
        const float size =
            code == 0x7f ? detail::same_bits<float>(0x7fc00000u) : detail::value_of_code<3, 7>(code);
        return bits > 0x7f ? -size : size;
    }
    [[nodiscard]] static constexpr float8_e4m3fn_t from_bits(std::uint8_t b) {
        float8_e4m3fn_t x;
        x.bits = b;
        return x;
    }

private:
    MEZZO_HOST_DEVICE static constexpr std::uint8_t from(float value) {
        const auto u = detail::same_bits<std::uint32_t>(value), magnitude = u & 0x7fffffffu;
        const std::uint32_t sign = u >> 24 & 0x80u, code = detail::rounded_code<3, 7>(magnitude);
        if (magnitude > 0x7f800000u) return std::uint8_t(sign | 0x7fu);
        return std::uint8_t(sign | (code < 0x7eu ? code : 0x7eu));
    }
};

// OCP's E5M2 as storage, the upper byte of a float16: +-0 to +-57344, infinities and NaN. Conversion to float
// is exact. From float it rounds to nearest even, and from 61440 on to infinity.
struct float8_e5m2_t {
    std::uint8_t bits = 0;
    constexpr float8_e5m2_t() = default;
    MEZZO_HOST_DEVICE constexpr explicit float8_e5m2_t(float value) : bits(from(value)) {}
    MEZZO_HOST_DEVICE constexpr explicit operator float() const {
        const std::uint32_t code = bits & 0x7fu;
        const float size = code < 0x7c ? detail::value_of_code<2, 15>(code)
                                       : detail::same_bits<float>(code == 0x7c ? 0x7f800000u : 0x7fc00000u);
        return bits > 0x7f ? -size : size;
    }
    [[nodiscard]] static constexpr float8_e5m2_t from_bits(std::uint8_t b) {
        float8_e5m2_t x;
        x.bits = b;
        return x;
    }

private:
    MEZZO_HOST_DEVICE static constexpr std::uint8_t from(float value) {
        const auto u = detail::same_bits<std::uint32_t>(value), magnitude = u & 0x7fffffffu;
        const std::uint32_t sign = u >> 24 & 0x80u, code = detail::rounded_code<2, 15>(magnitude);
        if (magnitude > 0x7f800000u) return std::uint8_t(sign | 0x7fu);
        return std::uint8_t(sign | (code < 0x7cu ? code : 0x7cu));
    }
};

// OCP's E8M0 as storage, for scales: the powers of two from 2^-127 to 2^127, and NaN. Conversion to float is
// exact. From float it drops the sign. Numbers between two powers become the larger one from their mean on;
// those between 2^-127 and 2^-126 become 2^-126, smaller ones and 0 become 2^-127; infinities and numbers
// that round to 2^128 become NaN. PyTorch 2.15 has the same rules.
struct float8_e8m0fnu_t {
    std::uint8_t bits = 0;
    constexpr float8_e8m0fnu_t() = default;
    MEZZO_HOST_DEVICE constexpr explicit float8_e8m0fnu_t(float value) : bits(from(value)) {}
    MEZZO_HOST_DEVICE constexpr explicit operator float() const {
        if (bits == 0xff) return detail::same_bits<float>(0x7fc00000u);
        return detail::same_bits<float>(bits == 0 ? 0x00400000u : std::uint32_t(bits) << 23);
    }
    [[nodiscard]] static constexpr float8_e8m0fnu_t from_bits(std::uint8_t b) {
        float8_e8m0fnu_t x;
        x.bits = b;
        return x;
    }

private:
    MEZZO_HOST_DEVICE static constexpr std::uint8_t from(float value) {
        const std::uint32_t magnitude = detail::same_bits<std::uint32_t>(value) & 0x7fffffffu;
        const std::uint32_t exponent = magnitude >> 23, half = exponent == 0 ? 0x3fffffu : 0x400000u;
        return std::uint8_t(exponent == 0xff ? 0xffu : (magnitude + half) >> 23);
    }
};

struct DtypeInfo {
    const char* name;
    std::size_t size;  // of an element, in bytes
    DtypeKind kind;
    double max;              // the largest finite value; int64's 2^63 - 1 is rounded to 2^63
    double epsilon;          // from 1 to the next larger number; 0 of integers and booleans
    int significand_bits;    // with the hidden one; of integers all bits but the sign
    int exponent_bits;       // 0 of integers and booleans
    const char* file_name;   // in safetensors
    const char* numpy_name;  // name for numpy.dtype(); bfloat16 and float8 are those of the ml_dtypes package
};

inline constexpr DtypeInfo dtype_table[] = {
#define MEZZO_DTYPE(name, T, kind, max, epsilon, significand, exponent, file_name, numpy_name) \
    {#name, sizeof(T), DtypeKind::kind, max, epsilon, significand, exponent, file_name, numpy_name},
#include "mezzo/dtypes.def"
#undef MEZZO_DTYPE
};
namespace detail {
[[noreturn]] void unknown_dtype(int number);  // throws Error(dtype)
}
// Properties of a dtype. Throws Error(dtype) for a number that is not a dtype, as do all functions that call
// it.
[[nodiscard]] constexpr const DtypeInfo& dtype_info(Dtype dtype) {
    if (int(dtype) >= dtype_count) detail::unknown_dtype(int(dtype));
    return dtype_table[int(dtype)];
}

[[nodiscard]] constexpr std::size_t size_of(Dtype dtype) { return dtype_info(dtype).size; }
// Whether elements are floating numbers to compute with: float16, bfloat16, float32, float64.
[[nodiscard]] constexpr bool is_floating(Dtype dtype) {
    return dtype_info(dtype).kind == DtypeKind::floating;
}
// Whether elements are only stored, copied and converted: int8 and float8. Every other op is an Error(dtype).
[[nodiscard]] constexpr bool is_storage_only(Dtype dtype) {
    return dtype_info(dtype).kind == DtypeKind::storage;
}
// Whether elements may have fractions: the floating dtypes and float8.
[[nodiscard]] constexpr bool has_exponent(Dtype dtype) { return dtype_info(dtype).exponent_bits > 0; }
[[nodiscard]] constexpr bool is_16bit(Dtype dtype) { return is_floating(dtype) && size_of(dtype) == 2; }
[[nodiscard]] constexpr const char* name(Dtype dtype) { return dtype_info(dtype).name; }  // "float16", ...
std::ostream& operator<<(std::ostream& out, Dtype dtype);

// The dtype that holds both: floating wins over integral, float16 with bfloat16 gives float32 (PyTorch's
// table). Throws Error(dtype) if one of two different dtypes is for storage only.
[[nodiscard]] Dtype promote(Dtype a, Dtype b);

// The dtype of a C++ element type: dtype_of<float>() == float32.
template <class T> [[nodiscard]] constexpr Dtype dtype_of();
#define MEZZO_DTYPE(name, T, ...) \
    template <> constexpr Dtype dtype_of<T>() { return name; }
#include "mezzo/dtypes.def"
#undef MEZZO_DTYPE

namespace detail {
// The C++ types of elements.
template <class T>
concept Element = false
#define MEZZO_DTYPE(name, T_, ...) || std::is_same_v<T, T_>
#include "mezzo/dtypes.def"
#undef MEZZO_DTYPE
    ;
// The types of numbers on the host that elements are converted to.
template <class T>
concept HostNumber = Element<T> || std::is_same_v<T, long long> || std::is_same_v<T, unsigned long long> ||
    std::is_same_v<T, long> || std::is_same_v<T, unsigned long> || std::is_same_v<T, unsigned> ||
    std::is_same_v<T, short> || std::is_same_v<T, unsigned short> || std::is_same_v<T, char>;
// Types that convert to double, and to an integer of up to 64 bits or a floating number by their unary +.
template <class T>
concept NumberLike = requires(const T& value, double& real) {
    real = value;
    requires std::is_arithmetic_v<decltype(+value)>;
    requires std::is_floating_point_v<decltype(+value)> || sizeof(+value) <= sizeof(std::int64_t);
};
}  // namespace detail

// A number next to a tensor, as in x + 1 or full({2}, 0.5); converts from any integer or floating number.
// Integers are stored exactly, except those beyond std::int64_t, which no integral dtype holds: they become
// double.
class Scalar {
public:
    template <detail::NumberLike T> Scalar(const T& value) {
        const auto number = +value;
        if constexpr (std::is_integral_v<decltype(+value)>) is_integer_ = std::in_range<std::int64_t>(number);
        if (is_integer_)
            integer_ = static_cast<std::int64_t>(number);
        else
            real_ = static_cast<double>(number);
    }
    // Whether it was made from an integer within std::int64_t.
    [[nodiscard]] bool is_integer() const { return is_integer_; }
    // The value as T, a floating type or std::int64_t: rounded or cut off by a static_cast.
    template <class T> [[nodiscard]] T to() const {
        return is_integer_ ? static_cast<T>(integer_) : static_cast<T>(real_);
    }

private:
    union {
        double real_;
        std::int64_t integer_;
    };
    bool is_integer_ = false;
};

// Whether T is a storage type: its elements are converted to float (exactly) for computation, and rounded
// back.
template <class T> inline constexpr bool is_storage_type = std::is_class_v<T>;

}  // namespace mezzo

#undef MEZZO_HOST_DEVICE
#pragma GCC visibility pop
