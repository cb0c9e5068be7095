// Floating arithmetic. Approximate functions are exact here, or, with options.inexact, off by a unit.
#include <cmath>
#include <limits>

#include "tests/ptx/lanes.h"

namespace mezzo::ptx {
namespace {

template <class T> T flushed(T x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(T(0), x) : x; }

// A neighbour of the result, by a hash of the operand. Powers of two stay: CUDA's own double-precision
// functions rely on ex2.approx for them.
f32 approximate(f32 result, f32 operand) {
    int exponent = 0;
    if (options.inexact == 0 || !std::isfinite(result) || result == 0 ||
        std::frexp(result, &exponent) == 0.5f)
        return result;
    const u32 hash = (std::bit_cast<u32>(operand) * 2654435761u + options.inexact) >> 7;
    return std::bit_cast<f32>(std::bit_cast<u32>(result) + hash % 3 - 1);
}

// div.approx is 0 for divisors from 2^126 on.
f32 divide_approximately(f32 x, f32 y) {
    if (std::isfinite(y) && std::abs(y) > 0x1p126f)
        return std::isinf(x) ? std::numeric_limits<f32>::quiet_NaN() : std::copysign(0.0f, x * y);
    return approximate(x / y, y);
}

// The upper half of the reciprocal.
f64 reciprocal_approximately(f64 x) {
    const f64 result = 1 / flushed(x);
    if (std::isnan(result)) return result;
    return flushed(std::bit_cast<f64>(std::bit_cast<u64>(result) & ~u64(0xFFFFFFFF)));
}

// A number wins over NaN, and -0 is below 0.
template <class T> T minimum(T x, T y) {
    if (std::isnan(x) || std::isnan(y)) return std::isnan(x) ? y : x;
    if (x == 0 && y == 0) return std::signbit(x) ? x : y;
    return y < x ? y : x;
}
template <class T> T maximum(T x, T y) {
    if (std::isnan(x) || std::isnan(y)) return std::isnan(x) ? y : x;
    if (x == 0 && y == 0) return std::signbit(x) ? y : x;
    return y > x ? y : x;
}

struct FloatTable : TableWriter {
    template <class T> void arithmetic(const std::string& type) {
        for (const std::string rounding : {"", ".rn"}) {
            op<T, T, T>("add" + rounding + "." + type, [](T x, T y) { return x + y; });
            op<T, T, T>("sub" + rounding + "." + type, [](T x, T y) { return x - y; });
            op<T, T, T>("mul" + rounding + "." + type, [](T x, T y) { return x * y; });
        }
        op<T, T, T>("div.rn." + type, [](T x, T y) { return x / y; });
        op<T, T>("rcp.rn." + type, [](T x) { return 1 / x; });
        op<T, T>("sqrt.rn." + type, [](T x) { return std::sqrt(x); });
        op<T, T, T, T>("fma.rn." + type, [](T x, T y, T z) { return std::fma(x, y, z); });
        op<T, T>("neg." + type, [](T x) { return -x; });
        op<T, T>("abs." + type, [](T x) { return std::abs(x); });
        op<T, T, T>("copysign." + type, [](T x, T y) { return std::copysign(y, x); });
        op<T, T, T>("min." + type, [](T x, T y) { return minimum(x, y); });
        op<T, T, T>("max." + type, [](T x, T y) { return maximum(x, y); });
        op<T, T>("cvt.rmi." + type + "." + type, [](T x) { return std::floor(x); });
        op<T, T>("cvt.rpi." + type + "." + type, [](T x) { return std::ceil(x); });
        op<T, T>("cvt.rzi." + type + "." + type, [](T x) { return std::trunc(x); });
        op<T, T>("cvt.rni." + type + "." + type, [](T x) { return std::nearbyint(x); });
    }
    // The names that end with u are true for NaN.
    template <class T> void comparisons(const std::string& type) {
        ordered<T>(type);
        comparison<T>("equ." + type, [](T x, T y) { return !(x < y || x > y); });
        comparison<T>("neu." + type, [](T x, T y) { return x != y; });
        comparison<T>("ltu." + type, [](T x, T y) { return !(x >= y); });
        comparison<T>("leu." + type, [](T x, T y) { return !(x > y); });
        comparison<T>("gtu." + type, [](T x, T y) { return !(x <= y); });
        comparison<T>("geu." + type, [](T x, T y) { return !(x < y); });
        comparison<T>("num." + type, [](T x, T y) { return !std::isnan(x) && !std::isnan(y); });
        comparison<T>("nan." + type, [](T x, T y) { return std::isnan(x) || std::isnan(y); });
    }
    void directed() {
        rounded_op<FE_DOWNWARD, f32, f32, f32, f32>("fma.rm.f32",
                                                    [](f32 x, f32 y, f32 z) { return std::fma(x, y, z); });
        rounded_op<FE_TOWARDZERO, f32, f32, f32, f32>("fma.rz.f32",
                                                      [](f32 x, f32 y, f32 z) { return std::fma(x, y, z); });
        rounded_op<FE_TOWARDZERO, f32, f32, f32>("add.rz.f32", [](f32 x, f32 y) { return x + y; });
    }
    void approximations() {
        op<f32, f32>("ex2.approx.f32", [](f32 x) { return approximate(std::exp2(x), x); });
        op<f32, f32>("ex2.approx.ftz.f32",
                     [](f32 x) { return flushed(approximate(std::exp2(flushed(x)), x)); });
        op<f32, f32>("rcp.approx.ftz.f32", [](f32 x) { return flushed(approximate(1 / flushed(x), x)); });
        op<f32, f32, f32>("div.approx.f32", [](f32 x, f32 y) { return divide_approximately(x, y); });
        op<f64, f64>("rcp.approx.ftz.f64", [](f64 x) { return reciprocal_approximately(x); });
    }
};

}  // namespace

void add_float_opcodes(Opcodes& table) {
    FloatTable add{{table}};
    add.arithmetic<f32>("f32"), add.arithmetic<f64>("f64");
    add.comparisons<f32>("f32"), add.comparisons<f64>("f64");
    add.directed();
    add.approximations();
}

}  // namespace mezzo::ptx
