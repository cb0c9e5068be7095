#include "mezzo/dtype.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <string>
#include <type_traits>

#include "core/visit_dtype.h"
#include "mezzo/error.h"
#include "mezzo/ops.h"

using namespace mezzo;

namespace {

// Checks every rounding boundary between neighbours: the midpoint goes to the even neighbour, the floats next
// to it to the nearer one. The finite values of a 16-bit dtype ascend with their bits, so neighbours differ
// by one.
template <class Half> int wrong_roundings(std::uint16_t infinity) {
    int wrong = 0;
    for (std::uint16_t bits = 0; bits + 1 < infinity; ++bits) {
        const auto low = Half::from_bits(bits), high = Half::from_bits(std::uint16_t(bits + 1));
        const double a(static_cast<float>(low)), b(static_cast<float>(high));
        const auto middle = static_cast<float>((a + b) / 2);
        wrong += double(middle) != (a + b) / 2;  // exact in float32 for both dtypes
        const Half even = bits % 2 == 0 ? low : high;
        const float below = std::nextafter(middle, 0.0f), above = std::nextafter(middle, HUGE_VALF);
        for (const int sign : {0, 0x8000}) {
            const float s = sign != 0 ? -1.0f : 1.0f;
            wrong += Half(s * middle).bits != (even.bits | sign);
            wrong += Half(s * below).bits != (low.bits | sign);
            wrong += Half(s * above).bits != (high.bits | sign);
        }
    }
    return wrong;
}

template <class Half> int wrong_round_trips(std::uint16_t infinity) {
    int wrong = 0;
    for (unsigned bits = 0; bits <= 0xffff; ++bits) {
        const auto value = static_cast<float>(Half::from_bits(std::uint16_t(bits)));
        const bool nan = (bits & 0x7fff) > infinity;
        const auto back = Half(value).bits;
        wrong += std::isnan(value) != nan;
        if (nan)
            wrong +=
                (back & 0x7fff) <= infinity || (back & 0x8000) != (bits & 0x8000);  // still NaN, same sign
        else
            wrong += back != bits;
    }
    return wrong;
}

}  // namespace

TEST_CASE("dtype: names, sizes and C++ types") {
    CHECK(std::string(name(float16)) == "float16");
    CHECK(std::string(name(bfloat16)) == "bfloat16");
    CHECK(std::string(name(float32)) == "float32");
    CHECK(std::string(name(float64)) == "float64");
    CHECK(std::string(name(int32)) == "int32");
    CHECK(std::string(name(int64)) == "int64");
    CHECK(std::string(name(uint8)) == "uint8");
    CHECK(std::string(name(boolean)) == "boolean");
    CHECK(size_of(float16) == sizeof(float16_t));
    CHECK(size_of(bfloat16) == sizeof(bfloat16_t));
    CHECK(size_of(float64) == 8);
    CHECK(size_of(int32) == 4);
    CHECK(size_of(boolean) == sizeof(bool));
    CHECK(dtype_of<bfloat16_t>() == bfloat16);
    CHECK(dtype_of<std::uint8_t>() == uint8);
    CHECK(is_floating(float64));
    CHECK_FALSE(is_floating(int32));
    CHECK(is_16bit(bfloat16));
    CHECK_FALSE(is_16bit(float32));
}

// Checks an arithmetic type's line of the table against C++'s numeric_limits.
template <class T> void check_row(const DtypeInfo& row, std::type_identity<T>) {
    using Limits = std::numeric_limits<T>;
    CHECK(row.max == double(Limits::max()));
    CHECK(row.significand_bits == Limits::digits);
    CHECK(row.epsilon == (std::is_floating_point_v<T> ? double(Limits::epsilon()) : 0.0));
    CHECK((1 << row.exponent_bits) == (std::is_floating_point_v<T> ? 2 * Limits::max_exponent : 1));
    const DtypeKind integers = std::is_same_v<T, bool>          ? DtypeKind::boolean
                               : std::is_same_v<T, std::int8_t> ? DtypeKind::storage
                                                                : DtypeKind::integral;
    CHECK(row.kind == (std::is_floating_point_v<T> ? DtypeKind::floating : integers));
}
// Checks a storage type's line of the table against its conversions.
template <class T>
requires is_storage_type<T>
void check_row(const DtypeInfo& row, std::type_identity<T>) {
    const auto rounded = [](double x) { return double(float(T(float(x)))); };
    CHECK(rounded(row.max) == row.max);
    CHECK(rounded(1 + row.epsilon) == 1 + row.epsilon);
    CHECK(row.significand_bits == 1 - std::ilogb(row.epsilon));
    const bool floating = sizeof(T) == 2;
    CHECK(row.kind == (floating ? DtypeKind::floating : DtypeKind::storage));
    // E4M3 has numbers where others have infinities; E8M0 goes down to 2^-127, and its ties go up.
    const bool saturates = std::is_same_v<T, float8_e4m3fn_t>, scales = std::is_same_v<T, float8_e8m0fnu_t>;
    CHECK(std::isfinite(rounded(row.max * (1 + row.epsilon / 2))) == saturates);
    CHECK(rounded(1 + row.epsilon / 2) == (scales ? 2 : 1));
    CHECK((1 << row.exponent_bits) == 2 * (std::ilogb(row.max) + (saturates ? 0 : 1)));
}

TEST_CASE("dtype: every row of the table is what the type does") {
    std::set<std::string> names, file_names, numpy_names;
    for (const Dtype dtype : all_dtypes) {
        const DtypeInfo& row = dtype_info(dtype);
        INFO(row.name);
        visit_dtype<Dtypes::all>(dtype, [&]<class T>(std::type_identity<T> type) {
            CHECK(dtype_of<T>() == dtype);
            CHECK(row.size == sizeof(T));
            check_row(row, type);
        });
        CHECK(is_floating(dtype) == (row.kind == DtypeKind::floating));
        CHECK(is_16bit(dtype) == (dtype == float16 || dtype == bfloat16));
        CHECK(is_storage_only(dtype) == (row.kind == DtypeKind::storage));
        CHECK(has_exponent(dtype) == (row.epsilon > 0));
        names.insert(row.name);
        file_names.insert(row.file_name);
        numpy_names.insert(row.numpy_name);
    }
    CHECK(names.size() == std::size_t(dtype_count));
    CHECK(file_names == std::set<std::string>{"F16", "BF16", "F32", "F64", "I32", "I64", "U8", "BOOL", "I8",
                                              "F8_E4M3", "F8_E5M2", "F8_E8M0"});
    CHECK(numpy_names == std::set<std::string>{"float16", "bfloat16", "float32", "float64", "int32", "int64",
                                               "uint8", "bool", "int8", "float8_e4m3fn", "float8_e5m2",
                                               "float8_e8m0fnu"});
}

TEST_CASE("dtype: a number that is no dtype is an error wherever the table is read") {
    const auto bad = Dtype(99);
    CHECK_THROWS_WITH(dtype_info(bad), Catch::Matchers::Equals("Dtype: 99 is no dtype; there are 0 to 11"));
    CHECK_THROWS_AS(size_of(Dtype(dtype_count)), Error);
    CHECK_THROWS_AS(name(bad), Error);
    CHECK_THROWS_AS(promote(bad, float32), Error);
    CHECK_THROWS_AS(empty({2}, {.dtype = bad}), Error);
    CHECK_THROWS_AS(zeros({2}).to(bad), Error);
    static_assert(size_of(float64) == 8);  // also in constant expressions
}

TEST_CASE("dtype: kernels of a subset are compiled for its dtypes, others are refused") {
    const auto size = []<class T>(std::type_identity<T>) { return sizeof(T); };
    for (const Dtype dtype : all_dtypes) {
        CHECK(visit_dtype<Dtypes::all>(dtype, size) == size_of(dtype));
        if (is_storage_only(dtype)) {
            CHECK(visit_dtype<Dtypes::storage>(dtype, size) == 1);
            CHECK_THROWS_AS(visit_dtype(dtype, size), Error);
        } else {
            CHECK(visit_dtype(dtype, size) == size_of(dtype));
            CHECK_THROWS_AS(visit_dtype<Dtypes::storage>(dtype, size), Error);
        }
        if (is_floating(dtype))
            CHECK(visit_dtype<Dtypes::floating>(dtype, size) == size_of(dtype));
        else
            CHECK_THROWS_WITH(visit_dtype<Dtypes::floating>(dtype, size),
                              "no kernel for elements of " + std::string(name(dtype)));
    }
    CHECK(visit_dtype<Dtypes::up_to_32bit>(bfloat16, size) == 2);
    CHECK_THROWS_AS(visit_dtype<Dtypes::up_to_32bit>(float64, size), Error);
}

TEST_CASE("dtype: promotion is PyTorch's table") {
    const Dtype f16 = float16, b16 = bfloat16, f32 = float32, f64 = float64;
    const Dtype i32 = int32, i64 = int64, u8 = uint8, b = boolean;
    constexpr int computed = 8;  // the others are for storage only
    const Dtype table[computed][computed] = {
        // f16  bf16  f32  f64  i32  i64  u8   bool
        {f16, f32, f32, f64, f16, f16, f16, f16},  // float16
        {f32, b16, f32, f64, b16, b16, b16, b16},  // bfloat16
        {f32, f32, f32, f64, f32, f32, f32, f32},  // float32
        {f64, f64, f64, f64, f64, f64, f64, f64},  // float64
        {f16, b16, f32, f64, i32, i64, i32, i32},  // int32
        {f16, b16, f32, f64, i64, i64, i64, i64},  // int64
        {f16, b16, f32, f64, i32, i64, u8, u8},    // uint8
        {f16, b16, f32, f64, i32, i64, u8, b},     // boolean
    };
    for (int i = 0; i < dtype_count; ++i)
        for (int j = 0; j < dtype_count; ++j) {
            INFO(name(Dtype(i)) << " with " << name(Dtype(j)));
            if (i < computed && j < computed)
                CHECK(promote(Dtype(i), Dtype(j)) == table[i][j]);
            else if (i == j)
                CHECK(promote(Dtype(i), Dtype(j)) == Dtype(i));
            else
                CHECK_THROWS_WITH(promote(Dtype(i), Dtype(j)),
                                  Catch::Matchers::Contains("is for storage only"));
        }
}

TEST_CASE("dtype: all 65,536 values of both 16-bit dtypes survive the way through float") {
    CHECK(wrong_round_trips<float16_t>(0x7c00) == 0);
    CHECK(wrong_round_trips<bfloat16_t>(0x7f80) == 0);
}

TEST_CASE("dtype: float to 16 bit rounds to nearest, ties to even") {
    CHECK(wrong_roundings<float16_t>(0x7c00) == 0);
    CHECK(wrong_roundings<bfloat16_t>(0x7f80) == 0);
}

TEST_CASE("dtype: known values and the edges of the ranges") {
    CHECK(float(float16_t::from_bits(0x3c00)) == 1.0f);
    CHECK(float(float16_t::from_bits(0x7bff)) == 65504.0f);
    CHECK(float(float16_t::from_bits(0x0001)) == 0x1p-24f);
    CHECK(float(float16_t::from_bits(0x83ff)) == -1023 * 0x1p-24f);
    CHECK(float16_t(65519.996f).bits == 0x7bff);
    CHECK(float16_t(65520.0f).bits == 0x7c00);
    CHECK(float16_t(-1e30f).bits == 0xfc00);
    CHECK(float16_t(0x1p-25f).bits == 0);  // a tie between 0 and the smallest
    CHECK(float16_t(0x1.000002p-25f).bits == 1);
    CHECK(float16_t(-0.0f).bits == 0x8000);
    CHECK(float(bfloat16_t::from_bits(0x4049)) == 3.140625f);
    CHECK(bfloat16_t(std::numeric_limits<float>::max()).bits == 0x7f80);
    CHECK(bfloat16_t(std::numeric_limits<float>::denorm_min()).bits == 0);
    CHECK(std::isnan(float(float16_t(std::numeric_limits<float>::quiet_NaN()))));
    // A NaN whose payload sits in the bits that are cut off must not become infinity.
    float thin = 0;
    const std::uint32_t thin_bits = 0x7f800001;
    std::memcpy(&thin, &thin_bits, sizeof thin);
    CHECK(std::isnan(float(float16_t(thin))));
    CHECK(std::isnan(float(bfloat16_t(thin))));
    static_assert(float16_t(1.5f).bits == 0x3e00 && float(bfloat16_t(-2.0f)) == -2.0f);
}

#ifdef __FLT16_MANT_DIG__
TEST_CASE("dtype: float16_t agrees with the compiler's own type") {
#ifdef __aarch64__  // where g++ 12 has no _Float16 in C++
    using Native = __fp16;
#else
    using Native = __typeof__(__extension__(_Float16) 0);
#endif
    int wrong = 0;
    const auto check_one = [&wrong](float value) {
        const auto native = static_cast<Native>(value);
        std::uint16_t bits = 0;
        std::memcpy(&bits, &native, sizeof bits);
        wrong += std::isnan(value) ? !std::isnan(float(float16_t(value))) : bits != float16_t(value).bits;
    };
    for (unsigned bits = 0; bits <= 0xffff; ++bits) {
        const auto half = std::uint16_t(bits);
        Native native{};
        std::memcpy(&native, &half, sizeof native);
        const auto theirs = static_cast<float>(native), ours = float(float16_t::from_bits(half));
        wrong += std::isnan(theirs) ? !std::isnan(ours) : std::memcmp(&theirs, &ours, sizeof ours) != 0;
    }
    // A walk over all exponents of float32 with a step that is not a round number in any base.
    for (std::uint64_t bits = 0; bits <= 0xffffffffu; bits += 104729) {
        const auto word = static_cast<std::uint32_t>(bits);
        float value = 0;
        std::memcpy(&value, &word, sizeof value);
        check_one(value);
    }
    CHECK(wrong == 0);
}
#endif
