// Formats of numbers in less than 32 bits: halves, stochastic rounding, and blocks of 8-bit codes.
#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include "core/philox.h"
#include "cpu/elementwise/loops.h"
#include "cpu/isa/isa.h"
#include "kernels/narrow_state.h"
#include "tests/support/support.h"

namespace {

using namespace mezzo;

constexpr float inf = std::numeric_limits<float>::infinity();

// The values of the paper's code: the middles of equal parts of [0.1, 1] in each decade, 0, and 1.
std::vector<double> code_values(int bits) {
    std::vector<double> values = {0};
    for (int i = 0; i < bits; ++i)
        for (int j = 0; j < 1 << i; ++j)
            values.push_back(std::pow(10, i + 1 - bits) * (0.1 + 0.9 * (j + 0.5) / (1 << i)));
    values.back() = 1;
    return values;
}

double nearest(const std::vector<double>& values, double x) {
    double best = values[0];
    for (const double v : values)
        if (std::abs(v - x) < std::abs(best - x)) best = v;
    return best;
}

struct Set {
    cpu::Isa isa;
    const cpu::Loops* loops;
};
std::vector<Set> sets() {
    std::vector<Set> all;
    for (const cpu::Isa isa : {cpu::Isa::portable, cpu::Isa::avx2, cpu::Isa::avx512})
        if (isa <= cpu::best_isa()) all.push_back({isa, &cpu::loops_of(isa)});
    return all;
}

}  // namespace

TEST_CASE("narrow state: codes have the values of the paper and are the nearest", "[optim]") {
    const std::vector<double> seven = code_values(7), eight = code_values(8);
    REQUIRE(eight.size() == 256);
    for (std::uint32_t code = 0; code < 256; ++code) {
        const double value = double(functors::from_code(code, false, 1));
        CHECK(value == Approx(eight[code]).epsilon(1e-5));
        CHECK(functors::to_code(float(value), false, 1) == code);
        const double with_sign = double(functors::from_code(code, true, 2));
        CHECK(with_sign == Approx((code < 128 ? 2 : -2) * seven[code % 128]).epsilon(1e-5));
        if (code != 128) CHECK(functors::to_code(float(with_sign), true, 0.5f) == code);
    }
    std::vector<double> x = test::random_values(4000, 5, test::Domain::unit);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = double(float(x[i] * std::pow(10, -double(i % 9))));
    for (const double v : x) {
        const double read = double(functors::from_code(functors::to_code(float(v), true, 1), true, 1));
        CHECK(std::abs(read - v) <= std::abs(nearest(seven, v) - v) + 1e-6 * v);
        const double second = double(functors::from_code(functors::to_code(float(v), false, 1), false, 1));
        const double best = v < 0.275e-7 ? eight[1] : nearest(eight, v);  // only 0 becomes 0
        CHECK(std::abs(second - v) <= std::abs(best - v) + 1e-6 * v);
    }
    CHECK(functors::to_code(1e-30f, false, 1) == 1);
    CHECK(functors::to_code(0, false, 1) == 0);
}

TEST_CASE("narrow state: the loops of every instruction set", "[optim]") {
    std::vector<float> x;
    for (const double v : test::random_values(1000, 6, test::Domain::any)) x.push_back(float(v * v * v));
    for (std::size_t i = 0; i < 10; ++i) x[i * 40] = 0;
    std::vector<std::uint32_t> words(500);
    for (std::size_t i = 0; i < words.size(); i += 4) {
        const PhiloxWords block = philox(7, i / 4);
        std::copy(block.v, block.v + 4, words.begin() + std::ptrdiff_t(i));
    }
    for (const Set& set : sets()) {
        CAPTURE(cpu::name(set.isa));
        std::vector<std::uint16_t> high(x.size()), low(x.size()), rounded(x.size());
        std::vector<float> back(x.size());
        set.loops->split_halves(high.data(), low.data(), x.data(), std::int64_t(x.size()));
        set.loops->join_halves(back.data(), high.data(), low.data(), std::int64_t(x.size()));
        CHECK(back == x);
        set.loops->round_stochastically(rounded.data(), x.data(), words.data(), std::int64_t(x.size()));
        bool same = true;
        for (std::size_t i = 0; i < x.size(); ++i) {
            const std::uint32_t bits = std::bit_cast<std::uint32_t>(x[i]);
            const std::uint32_t half = words[i / 2] >> (i % 2 * 16) & 0xffff;
            same = same && rounded[i] == functors::rounded_stochastically(bits, half) &&
                   high[i] == functors::halves_of(bits).high;
        }
        CHECK(same);
        for (const bool with_sign : {true, false}) {
            std::vector<float> values = x;
            if (!with_sign)
                for (float& v : values) v = std::abs(v);
            std::vector<Block8> blocks(4);
            set.loops->write_blocks(blocks.data(), values.data(), std::int64_t(values.size()), with_sign);
            set.loops->read_blocks(back.data(), blocks.data(), std::int64_t(values.size()), with_sign);
            CHECK(blocks[3].code[255] == 0);
            const std::vector<double> codes = code_values(with_sign ? 7 : 8);
            double worst = 0;
            for (std::size_t i = 0; i < values.size(); ++i) {
                const double maximum = double(blocks[i / 256].maximum), v = double(std::abs(values[i]));
                const double best =
                    v == 0 ? 0 : std::max(nearest(codes, v / maximum), with_sign ? 0 : codes[1]);
                const double error = std::abs(std::abs(double(back[i])) - v);
                worst = std::max(worst, error - std::abs(best * maximum - v) * 1.0001);
                if (back[i] != 0 && values[i] != 0) CHECK(std::signbit(back[i]) == std::signbit(values[i]));
            }
            CHECK(worst < 1e-6);
        }
        std::vector<float> bad(256, 1.0f);
        bad[200] = inf;
        Block8 block;
        set.loops->write_blocks(&block, bad.data(), 256, true);
        set.loops->read_blocks(bad.data(), &block, 256, true);
        CHECK(std::isnan(bad[0]));
        CHECK(std::isnan(bad[200]));
    }
}

TEST_CASE("narrow state: stochastic rounding has the right mean and keeps special numbers", "[optim]") {
    const auto rounded = [](float x, std::uint32_t random) {
        const auto half = functors::rounded_stochastically(std::bit_cast<std::uint32_t>(x), random);
        return std::bit_cast<float>(std::uint32_t(half) << 16);
    };
    constexpr std::int64_t count = 1'000'000;
    for (const float x : {1.0009f, -3.1e-5f, 0.7001f, 0x1.2345p-130f}) {
        const float below = rounded(x, 0), above = rounded(x, 0xffff);
        double sum = 0;
        bool neighbours = true;
        for (std::int64_t i = 0; i < count / 8; ++i) {
            const PhiloxWords words = philox(functors::rounding_key(3, 1, 12), std::uint64_t(i));
            for (int j = 0; j < 8; ++j) {
                const float y = rounded(x, philox_half(words, j));
                neighbours = neighbours && (y == below || y == above);
                sum += double(y);
            }
        }
        const double share = (double(x) - double(below)) / (double(above) - double(below));
        const double sigma = std::abs(double(above) - double(below)) * std::sqrt(share * (1 - share) / count);
        CAPTURE(x, share);
        CHECK(neighbours);
        CHECK(std::abs(sum / count - double(x)) < 4 * sigma);
    }
    for (const std::uint32_t random : {0u, 0xffffu}) {
        CHECK(rounded(inf, random) == inf);
        CHECK(rounded(-inf, random) == -inf);
        CHECK(std::isnan(rounded(std::bit_cast<float>(0x7f800001u), random)));
        CHECK(std::isnan(rounded(std::bit_cast<float>(0xffffffffu), random)));
        CHECK(std::isfinite(rounded(std::numeric_limits<float>::max(), random)));
        CHECK(rounded(1.5f, random) == 1.5f);
    }
    CHECK(functors::rounding_key(1, 0, 5) != functors::rounding_key(1, 1, 5));
    CHECK(functors::rounding_key(1, 0, 5) != functors::rounding_key(1, 0, 6));
}
