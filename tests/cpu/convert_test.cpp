// Bulk conversion against the scalar types of dtype.h and against rules for each pair of dtypes.
#include "cpu/elementwise/convert.h"

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "cpu/isa/isa.h"

using namespace mezzo;

namespace {

std::vector<cpu::Isa> available() {
    std::vector<cpu::Isa> list;
    for (const cpu::Isa isa : {cpu::Isa::portable, cpu::Isa::avx2, cpu::Isa::avx512})
        if (isa <= cpu::best_isa()) list.push_back(isa);
    return list;
}

bool is_nan(float16_t x) { return (x.bits & 0x7fff) > 0x7c00; }
bool is_nan(bfloat16_t x) { return (x.bits & 0x7fff) > 0x7f80; }

// Converts all 65,536 patterns to float32 and back.
template <class Half> void all_patterns(Dtype type) {
    for (const cpu::Isa isa : available()) {
        cpu::force_isa(isa);
        INFO(cpu::name(isa));
        std::vector<Half> in(65536), back(65536);
        std::vector<float> out(65536);
        for (std::uint32_t i = 0; i < 65536; ++i) in[i] = Half::from_bits(static_cast<std::uint16_t>(i));
        cpu::convert(in.data(), type, out.data(), float32, 65536);
        cpu::convert(out.data(), float32, back.data(), type, 65536);
        int wrong = 0;
        for (std::size_t i = 0; i < 65536; ++i) {
            const float want = static_cast<float>(in[i]);
            if (is_nan(in[i]))
                wrong += !(std::isnan(out[i]) && is_nan(back[i]));
            else
                wrong += std::bit_cast<std::uint32_t>(out[i]) != std::bit_cast<std::uint32_t>(want) ||
                         back[i].bits != in[i].bits;
        }
        CHECK(wrong == 0);
    }
}

// Converts float32 values around every rounding decision of a 16-bit type: each pattern, its midpoint, and
// their neighbours.
template <class Half> void narrowing(Dtype type) {
    std::vector<float> in;
    for (std::uint32_t i = 0; i < 65536; ++i) {
        const float low = static_cast<float>(Half::from_bits(static_cast<std::uint16_t>(i)));
        const float high = static_cast<float>(Half::from_bits(static_cast<std::uint16_t>(i + 1)));
        const float middle = static_cast<float>((double(low) + double(high)) / 2);
        for (const float x : {low, middle})
            for (const std::uint32_t step : {0u, 1u, ~0u})
                in.push_back(std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) + step));
    }
    for (const float x : {1e38f, -1e38f, 3.4028235e38f, 1e-45f, 65519.99f, 65520.0f, 2.98e-8f, 2.99e-8f})
        in.push_back(x);
    const auto n = static_cast<std::int64_t>(in.size());
    for (const cpu::Isa isa : available()) {
        cpu::force_isa(isa);
        INFO(cpu::name(isa));
        std::vector<Half> out(in.size());
        cpu::convert(in.data(), float32, out.data(), type, n);
        int wrong = 0;
        for (std::size_t i = 0; i < in.size(); ++i)
            wrong += std::isnan(in[i]) ? !is_nan(out[i]) : out[i].bits != Half(in[i]).bits;
        CHECK(wrong == 0);
    }
}

}  // namespace

TEST_CASE("convert: all float16 and bfloat16 patterns, both ways", "[convert]") {
    all_patterns<float16_t>(float16);
    all_patterns<bfloat16_t>(bfloat16);
    cpu::release_isa();
}

TEST_CASE("convert: narrowing rounds to nearest even everywhere", "[convert]") {
    narrowing<float16_t>(float16);
    narrowing<bfloat16_t>(bfloat16);
    cpu::release_isa();
    // independent of dtype.h: ties to even, overflow, smallest subnormal
    const float in[] = {1 + 0x1p-11f, 1 + 3 * 0x1p-11f, 65519.0f,   65520.0f,
                        0x1p-24f,     0x1p-25f,         0x1.8p-25f, -0.0f};
    const std::uint16_t want[] = {0x3c00, 0x3c02, 0x7bff, 0x7c00, 0x0001, 0x0000, 0x0001, 0x8000};
    std::uint16_t out[8];
    cpu::convert(in, float32, out, float16, 8);
    for (int i = 0; i < 8; ++i) CHECK(out[i] == want[i]);
    const float in2[] = {1 + 0x1p-8f, 1 + 3 * 0x1p-8f, 3.4028235e38f, 3.3895314e38f};
    const std::uint16_t want2[] = {0x3f80, 0x3f82, 0x7f80, 0x7f7f};
    cpu::convert(in2, float32, out, bfloat16, 4);
    for (int i = 0; i < 4; ++i) CHECK(out[i] == want2[i]);
}

TEST_CASE("convert: float64 is rounded once", "[convert]") {
    // just above a tie: rounding to float32 first would land on the tie and then go down to even
    const double in[] = {1 + 0x1p-11 + 0x1p-40,
                         1 + 0x1p-8 + 0x1p-40,
                         1e300,
                         -1e300,
                         0x1p-25 + 0x1p-60,
                         std::numeric_limits<double>::quiet_NaN()};
    float16_t half[6];
    bfloat16_t brain[6];
    cpu::convert(in, float64, half, float16, 6);
    cpu::convert(in, float64, brain, bfloat16, 6);
    CHECK(half[0].bits == 0x3c01);
    CHECK(brain[1].bits == 0x3f81);
    CHECK(half[2].bits == 0x7c00);
    CHECK(half[3].bits == 0xfc00);
    CHECK(brain[2].bits == 0x7f80);
    CHECK(half[4].bits == 0x0001);
    CHECK(is_nan(half[5]));
    CHECK(is_nan(brain[5]));
}

TEST_CASE("convert: int64 is rounded once", "[convert]") {
    // 1 above or below a tie of bfloat16, and too small a part of the number for float32 and float64
    const std::int64_t tie = (std::int64_t(1) << 62) + (std::int64_t(1) << 54);
    const std::int64_t in[] = {tie + 1, tie, -tie - 1, (std::int64_t(1) << 24) * 257 + 1, 65519, 65520};
    bfloat16_t brain[6];
    float16_t half[6];
    cpu::convert(in, int64, brain, bfloat16, 6);
    cpu::convert(in, int64, half, float16, 6);
    CHECK(static_cast<float>(brain[0]) == 0x1p62f + 0x1p55f);
    CHECK(static_cast<float>(brain[1]) == 0x1p62f);
    CHECK(static_cast<float>(brain[2]) == -0x1p62f - 0x1p55f);
    CHECK(static_cast<float>(brain[3]) == 0x1p32f + 0x1p25f);
    CHECK(static_cast<float>(half[4]) == 65504);
    CHECK(half[5].bits == 0x7c00);
}

TEST_CASE("convert: every pair, every length up to 40, no alignment", "[convert]") {
    // 0..9 are exact in every type but float8, which gets powers of two; as boolean they are 0 or 1
    for (const cpu::Isa isa : available()) {
        cpu::force_isa(isa);
        for (int f = 0; f < dtype_count; ++f)
            for (int t = 0; t < dtype_count; ++t)
                for (std::int64_t n = 0; n <= 40; ++n) {
                    const auto from = static_cast<Dtype>(f), to = static_cast<Dtype>(t);
                    std::vector<std::int32_t> values(static_cast<std::size_t>(n));
                    const bool codes = is_storage_only(from) || is_storage_only(to);
                    for (std::size_t i = 0; i < values.size(); ++i)
                        values[i] = codes ? 1 << i * 7 % 5 : static_cast<std::int32_t>(i * 7 % 10);
                    std::vector<unsigned char> source(41 * 8 + 1, 0xee), target(43 * 8, 0xee);
                    cpu::convert(values.data(), int32, source.data() + 1, from, n);
                    cpu::convert(source.data() + 1, from, target.data() + 3, to, n);
                    std::vector<std::int32_t> back(values.size());
                    cpu::convert(target.data() + 3, to, back.data(), int32, n);
                    if (from == boolean || to == boolean)
                        for (std::int32_t& v : values) v = v != 0;
                    const std::size_t end = 3 + static_cast<std::size_t>(n) * size_of(to);
                    INFO("from " << f << " to " << t << ", n " << n);
                    REQUIRE(back == values);
                    REQUIRE(target[2] == 0xee);
                    REQUIRE(target[end] == 0xee);
                }
    }
    cpu::release_isa();
}

TEST_CASE("convert: float to integer and to boolean", "[convert]") {
    const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
    const float in[] = {2.9f, -2.9f, nan, inf, -inf, 3e9f, 0.25f, -0.0f};
    std::int32_t i32[8];
    std::int64_t i64[8];
    bool truth[8];
    cpu::convert(in, float32, i32, int32, 8);
    cpu::convert(in, float32, i64, int64, 8);
    cpu::convert(in, float32, truth, boolean, 8);
    CHECK(i32[0] == 2);
    CHECK(i32[1] == -2);
    CHECK(i32[2] == 0);
    CHECK(i32[3] == std::numeric_limits<std::int32_t>::max());
    CHECK(i32[4] == std::numeric_limits<std::int32_t>::min());
    CHECK(i64[5] == 3000000000);
    CHECK(i64[4] == std::numeric_limits<std::int64_t>::min());
    CHECK(truth[2]);
    CHECK(truth[6]);
    CHECK_FALSE(truth[7]);
    const float16_t halves[] = {float16_t(-1.75f), float16_t(0x1p-24f), float16_t(300.0f)};
    std::uint8_t bytes[3];
    cpu::convert(halves, float16, truth, boolean, 3);
    cpu::convert(halves, float16, bytes, uint8, 3);
    CHECK(truth[1]);
    CHECK(bytes[0] == 255);
    CHECK(bytes[1] == 0);
    CHECK(bytes[2] == 300 - 256);
    const std::int64_t large[] = {(std::int64_t(1) << 53) + 1, -5};
    double doubles[2];
    cpu::convert(large, int64, doubles, float64, 2);
    CHECK(doubles[0] == 0x1p53);
    CHECK(doubles[1] == -5.0);
}
