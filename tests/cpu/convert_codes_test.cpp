// Conversions to and from the dtypes for storage only, against a reference in double that is written from the
// definition of the formats.
#include "cpu/elementwise/convert.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "cpu/isa/isa.h"

using namespace mezzo;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

// OCP's 8-bit formats with a sign: the codes from `special` on are infinity or NaN.
struct Format {
    Dtype dtype;
    int mantissa, bias;
    int special;
    double value(int code) const {
        const int exponent = code >> mantissa, rest = code & ((1 << mantissa) - 1);
        if (dtype == float8_e5m2 && code == special) return infinity;
        if (code >= special) return not_a_number;
        return exponent == 0 ? std::ldexp(rest, 1 - bias - mantissa)
                             : std::ldexp(rest + (1 << mantissa), exponent - bias - mantissa);
    }
};
constexpr Format e4m3{float8_e4m3fn, 3, 7, 0x7f}, e5m2{float8_e5m2, 2, 15, 0x7c};

// The code next to x; of two as near as each other the even one.
int expected(const Format& f, double x) {
    const int sign = std::signbit(x) ? 0x80 : 0;
    const double size = std::fabs(x);
    if (std::isnan(x)) return sign | 0x7f;
    const int last = f.special - 1;
    int low = 0;
    while (low < last && f.value(low + 1) <= size) ++low;
    if (low < last) {
        const double middle = (f.value(low) + f.value(low + 1)) / 2;
        return sign | (low + (size > middle || (size == middle && low % 2 == 1) ? 1 : 0));
    }
    if (f.dtype == float8_e4m3fn) return sign | last;  // saturates
    const double beyond = f.value(last) + (f.value(last) - f.value(last - 1)) / 2;
    return sign | (size >= beyond ? f.special : last);
}

// Powers of two from 2^-127 on, NaN for what is not finite.
int expected_e8m0(double x) {
    const double size = std::fabs(x);
    if (!std::isfinite(x)) return 0xff;
    if (size <= 0x1p-127) return 0;
    if (size < 0x1p-126) return 1;
    const int exponent = std::ilogb(size),
              code = exponent + 127 + (size >= std::ldexp(1.5, exponent) ? 1 : 0);
    return code < 0xff ? code : 0xff;
}

int expected(Dtype to, double x) {
    return to == float8_e8m0fnu ? expected_e8m0(x) : expected(to == float8_e4m3fn ? e4m3 : e5m2, x);
}

double value_of(Dtype dtype, int code) {
    if (dtype == int8) return code < 128 ? code : code - 256;
    if (dtype == float8_e8m0fnu) return code == 0xff ? not_a_number : std::ldexp(1, code - 127);
    const double size = (dtype == float8_e4m3fn ? e4m3 : e5m2).value(code & 0x7f);
    return code < 128 ? size : -size;
}

constexpr Dtype float8[] = {float8_e4m3fn, float8_e5m2, float8_e8m0fnu};
constexpr Dtype storage[] = {int8, float8_e4m3fn, float8_e5m2, float8_e8m0fnu};

std::vector<std::uint8_t> codes_of(const void* values, Dtype from, std::size_t n, Dtype to) {
    std::vector<std::uint8_t> codes(n);
    cpu::convert(values, from, codes.data(), to, std::int64_t(n));
    return codes;
}

// Number of codes that differ from those of the reference; `as_double` has the same values.
int wrong_codes(const void* values, Dtype from, const std::vector<double>& as_double, Dtype to) {
    const std::vector<std::uint8_t> codes = codes_of(values, from, as_double.size(), to);
    int wrong = 0;
    for (std::size_t i = 0; i < codes.size(); ++i) wrong += codes[i] != expected(to, as_double[i]);
    return wrong;
}

template <class F> void on_every_isa(const F& f) {
    for (const cpu::Isa isa : {cpu::Isa::portable, cpu::Isa::avx2, cpu::Isa::avx512}) {
        if (isa > cpu::best_isa()) continue;
        cpu::force_isa(isa);
        CAPTURE(int(isa));
        f();
    }
    cpu::release_isa();
}

template <class Half> int wrong_of_all_patterns(Dtype from, Dtype to) {
    std::vector<Half> halves;
    std::vector<double> values;
    for (unsigned bits = 0; bits <= 0xffff; ++bits) {
        halves.push_back(Half::from_bits(std::uint16_t(bits)));
        values.push_back(double(float(halves.back())));
    }
    return wrong_codes(halves.data(), from, values, to);
}

}  // namespace

TEST_CASE("convert: all 256 codes of the dtypes for storage are exact", "[convert]") {
    std::vector<std::uint8_t> codes(256);
    for (int i = 0; i < 256; ++i) codes[std::size_t(i)] = std::uint8_t(i);
    for (const Dtype dtype : storage) {
        CAPTURE(name(dtype));
        std::vector<double> values(256);
        cpu::convert(codes.data(), dtype, values.data(), float64, 256);
        for (int i = 0; i < 256; ++i) {
            const double value = values[std::size_t(i)], is = value_of(dtype, i);
            CAPTURE(i);
            CHECK((value == is || (std::isnan(value) && std::isnan(is))));
            if (dtype != float8_e8m0fnu) CHECK(std::signbit(value) == std::signbit(is));
        }
        // And back, but for the NaN of E5M2, of which one is written.
        const std::vector<std::uint8_t> back = codes_of(values.data(), float64, 256, dtype);
        for (int i = 0; i < 256; ++i) {
            const int code = dtype == float8_e5m2 && std::isnan(values[std::size_t(i)]) ? i | 3 : i;
            CHECK(int(back[std::size_t(i)]) == code);
        }
    }
}

TEST_CASE("convert: all 16-bit patterns to float8", "[convert]") {
    on_every_isa([] {
        for (const Dtype to : float8) {
            CAPTURE(name(to));
            CHECK(wrong_of_all_patterns<float16_t>(float16, to) == 0);
            CHECK(wrong_of_all_patterns<bfloat16_t>(bfloat16, to) == 0);
        }
    });
}

TEST_CASE("convert: float32 to float8, over all exponents", "[convert]") {
    std::vector<float> floats;
    std::vector<double> values;
    for (std::uint64_t bits = 0; bits <= 0xffffffffu; bits += 15013) {
        const auto word = std::uint32_t(bits);
        float x = 0;
        std::memcpy(&x, &word, sizeof x);
        floats.push_back(x);
        values.push_back(x);
    }
    on_every_isa([&] {
        for (const Dtype to : float8) {
            CAPTURE(name(to));
            CHECK(wrong_codes(floats.data(), float32, values, to) == 0);
        }
    });
}

TEST_CASE("convert: the means of neighbours and the numbers next to them, from float64, to float8",
          "[convert]") {
    std::vector<double> values{0, -0.0, infinity, -infinity, not_a_number, 1e300, -1e300, 1e-300, 0x1p-1074};
    for (const Dtype dtype : float8)
        for (int code = 0; code < 126; ++code) {
            const double middle = (value_of(dtype, code) + value_of(dtype, code + 1)) / 2;
            for (const double x : {middle, std::nextafter(middle, 0.0), std::nextafter(middle, infinity)})
                for (const double signed_x : {x, -x})
                    if (!std::isnan(x)) values.push_back(signed_x);
        }
    for (const double x : {464.0, 480.0, 61439.9999, 61440.0, 0x1.8p127, 0x1.7fffffffffp127, 0x1p128})
        values.push_back(x);
    for (const Dtype to : float8) {
        CAPTURE(name(to));
        CHECK(wrong_codes(values.data(), float64, values, to) == 0);
    }
}

// Codes that torch.tensor(x).to(dtype).view(torch.uint8) of PyTorch 2.15 gives.
TEST_CASE("convert: float8 as PyTorch 2.15 has it", "[convert]") {
    const float f_inf = std::numeric_limits<float>::infinity(), f_nan = float(not_a_number);
    const std::vector<float> x{0,          -0.0f,    1,         -1.5f,     17,         0.1f,
                               448,        464,      480,       61439,     61440,      1e9f,
                               -1e9f,      f_inf,    -f_inf,    f_nan,     0x1p-9f,    0x1p-10f,
                               0x1.8p-10f, 0x1p-17f, 0x1p-126f, 0x1p-127f, 0x1.8p127f, 3};
    const auto codes = [&](Dtype to) { return codes_of(x.data(), float32, x.size(), to); };
    CHECK(codes(float8_e4m3fn) == std::vector<std::uint8_t>{0x00, 0x80, 0x38, 0xbc, 0x58, 0x1d, 0x7e, 0x7e,
                                                            0x7e, 0x7e, 0x7e, 0x7e, 0xfe, 0x7e, 0xfe, 0x7f,
                                                            0x01, 0x00, 0x01, 0x00, 0x00, 0x00, 0x7e, 0x44});
    CHECK(codes(float8_e5m2) == std::vector<std::uint8_t>{0x00, 0x80, 0x3c, 0xbe, 0x4c, 0x2e, 0x5f, 0x5f,
                                                          0x60, 0x7b, 0x7c, 0x7c, 0xfc, 0x7c, 0xfc, 0x7f,
                                                          0x18, 0x14, 0x16, 0x00, 0x00, 0x00, 0x7c, 0x42});
    CHECK(codes(float8_e8m0fnu) == std::vector<std::uint8_t>{0x00, 0x00, 0x7f, 0x80, 0x83, 0x7c, 0x88, 0x88,
                                                             0x88, 0x8f, 0x8f, 0x9d, 0x9d, 0xff, 0xff, 0xff,
                                                             0x76, 0x75, 0x76, 0x6e, 0x01, 0x00, 0xff, 0x81});
}

TEST_CASE("convert: integers to the dtypes for storage", "[convert]") {
    std::vector<std::int32_t> small;
    std::vector<double> values;
    for (int i = -70000; i <= 70000; i += 7) {
        small.push_back(i);
        values.push_back(i);
    }
    for (const Dtype to : float8) {
        CAPTURE(name(to));
        CHECK(wrong_codes(small.data(), int32, values, to) == 0);
    }
    // Rounded once: a tie of E8M0, and numbers that float32 and float64 would round to it.
    const std::int64_t tie = std::int64_t(3) << 61,
                       large[] = {tie, tie - 1, tie + 1, -tie, 465, -61439, 61440};
    CHECK(codes_of(large, int64, 7, float8_e8m0fnu) ==
          std::vector<std::uint8_t>{190, 189, 190, 190, 136, 143, 143});
    CHECK(codes_of(large + 4, int64, 3, float8_e4m3fn) == std::vector<std::uint8_t>{0x7e, 0xfe, 0x7e});
    CHECK(codes_of(large + 4, int64, 3, float8_e5m2) == std::vector<std::uint8_t>{0x5f, 0xfb, 0x7c});
    const std::int64_t wide[] = {-1, 127, 128, 255, 256, (std::int64_t(1) << 53) + 1};
    CHECK(codes_of(wide, int64, 6, int8) == std::vector<std::uint8_t>{255, 127, 128, 255, 0, 1});
    const bool flags[] = {false, true};
    CHECK(codes_of(flags, boolean, 2, int8) == std::vector<std::uint8_t>{0, 1});
    CHECK(codes_of(flags, boolean, 2, float8_e4m3fn) == std::vector<std::uint8_t>{0, 0x38});
}

TEST_CASE("convert: floating numbers to int8 keep the low eight bits", "[convert]") {
    const float in[] = {
        1.9f, -1.9f, 127.9f, 128, -129, 300, float(not_a_number), float(infinity), -float(infinity), -0.0f};
    const std::vector<std::uint8_t> codes = codes_of(in, float32, 10, int8);
    CHECK(codes == codes_of(in, float32, 10, uint8));
    CHECK(codes == std::vector<std::uint8_t>{1, 255, 127, 128, 127, 44, 0, 255, 0, 0});
    const std::uint8_t e4m3_codes[] = {0x38, 0xb8, 0x7e, 0x7f};  // 1, -1, 448, NaN
    CHECK(codes_of(e4m3_codes, float8_e4m3fn, 4, int8) == std::vector<std::uint8_t>{1, 255, 192, 0});
}

TEST_CASE("convert: from codes to every dtype", "[convert]") {
    const std::uint8_t codes[] = {0x38, 0xc0, 0x7e, 0x01};  // E4M3: 1, -2, 448, 2^-9
    const auto as = [&](Dtype to) {
        std::vector<char> elements(4 * size_of(to));
        std::vector<double> values(4);
        cpu::convert(codes, float8_e4m3fn, elements.data(), to, 4);
        cpu::convert(elements.data(), to, values.data(), float64, 4);
        return values;
    };
    using Values = std::vector<double>;
    for (const Dtype to : {float16, bfloat16, float32, float64}) CHECK(as(to) == Values{1, -2, 448, 0x1p-9});
    CHECK(as(int32) == Values{1, -2, 448, 0});
    CHECK(as(int64) == Values{1, -2, 448, 0});
    CHECK(as(uint8) == Values{1, 254, 192, 0});
    CHECK(as(boolean) == Values{1, 1, 1, 1});
    CHECK(as(float8_e5m2) == Values{1, -2, 448, 0x1p-9});
    CHECK(as(float8_e8m0fnu) == Values{1, 2, 512, 0x1p-9});
    const std::uint8_t nans[] = {0x7f, 0xff};
    float16_t halves[2];
    cpu::convert(nans, float8_e4m3fn, halves, float16, 2);
    CHECK(std::isnan(float(halves[0])));
    CHECK(halves[1].bits >> 15 == 1);
}
