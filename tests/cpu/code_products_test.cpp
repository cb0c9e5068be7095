// Products of few rows with 8-bit codes, on the kernels of every instruction set.
#include <bit>
#include <cmath>

#include "tests/cpu/gemm_case.h"

using namespace gemm_case;

namespace {

struct CodeCase {
    Dtype type;
    std::int64_t rows, k, groups, count;
};

double value_of(Dtype type, std::uint8_t code) {
    return type == int8 ? double(std::bit_cast<std::int8_t>(code))
                        : double(static_cast<float>(std::bit_cast<float8_e4m3fn_t>(code)));
}

// Operands of a case. Memory behind the last code and the last row of x is not theirs.
struct Operands {
    Operands(const CodeCase& c, unsigned seed) : test(c), ldx((c.k + 31) / 32 * 32) {
        std::mt19937 random(seed);
        x.resize(std::size_t(c.rows * ldx));
        for (std::int64_t i = 0; i < c.rows; ++i)
            for (std::int64_t p = 0; p < c.k; ++p)
                x[std::size_t(i * ldx + p)] = float(random() % 2001) - 1000;
        codes.resize(std::size_t(c.count * c.k));
        for (std::uint8_t& code : codes) do
                code = std::uint8_t(random());
            while (c.type != int8 && (code & 127) == 127);  // NaN
        scale.resize(std::size_t(c.count * c.groups));
        for (float& s : scale) s = std::ldexp(1 + float(random() % 128) / 128, int(random() % 9) - 4);
    }
    std::vector<float> product(const cpu::GemmKernels& kernels) const {
        std::vector<float> given = scale, t(std::size_t(test.rows * test.count), 77);
        if (test.type != int8)
            for (float& s : given) s *= 256;
        kernels.codes({x.data(), ldx, test.rows, codes.data(), test.type, given.data(), test.groups, test.k,
                       test.count, t.data(), test.count});
        return t;
    }
    // The exact element (i, j), and the sum of magnitudes.
    std::pair<double, double> exact(std::int64_t i, std::int64_t j) const {
        double sum = 0, magnitude = 0;
        for (std::int64_t p = 0; p < test.k; ++p) {
            const double w = value_of(test.type, codes[std::size_t(j * test.k + p)]) *
                             double(scale[std::size_t(j * test.groups + p / (test.k / test.groups))]),
                         product = double(x[std::size_t(i * ldx + p)]) * w;
            sum += product, magnitude += std::abs(product);
        }
        return {sum, magnitude};
    }
    CodeCase test;
    std::int64_t ldx;
    std::vector<float> x, scale;
    std::vector<std::uint8_t> codes;
};

}  // namespace

TEST_CASE("code products: two units of float32 sums", "[gemm][quantize]") {
    const CodeCase cases[] = {{int8, 1, 32, 1, 1},
                              {int8, 1, 768, 24, 5},
                              {int8, 4, 768, 24, 3},
                              {int8, 7, 96, 3, 2},
                              {int8, 3, 4096, 128, 2},
                              {int8, 2, 45, 1, 3},
                              {int8, 1, 5, 1, 3},
                              {int8, 8, 6144, 192, 2},
                              {float8_e4m3fn, 1, 768, 1, 5},
                              {float8_e4m3fn, 5, 100, 1, 3},
                              {float8_e4m3fn, 2, 5000, 1, 2},
                              {int8, 3, 6016, 188, 1}};
    for (const auto& [isa, kernels] : variants())
        for (const CodeCase& c : cases) {
            if (kernels->codes == nullptr) continue;
            const Operands operands(c, 7);
            const std::vector<float> got = operands.product(*kernels);
            for (std::int64_t i = 0; i < c.rows; ++i)
                for (std::int64_t j = 0; j < c.count; ++j) {
                    const auto [sum, magnitude] = operands.exact(i, j);
                    INFO(isa << ", " << c.rows << " x " << c.k << " x " << c.count << ", " << c.groups
                             << " groups, element " << i << ", " << j);
                    CHECK(std::abs(double(got[std::size_t(i * c.count + j)]) - sum) <=
                          2 * 0x1p-24 * magnitude);
                }
        }
}

TEST_CASE("code products: every code", "[gemm][quantize]") {
    for (const auto& [isa, kernels] : variants())
        for (const Dtype type : {int8, float8_e4m3fn})
            for (const std::int64_t place : {0, 5, 31, 33}) {
                if (kernels->codes == nullptr) continue;
                Operands operands({type, 1, 40, 1, 256},
                                  1);  // the last 8 of 40 codes are a part of their own
                std::fill(operands.x.begin(), operands.x.end(), 0.0f);
                operands.x[std::size_t(place)] = 1;
                std::fill(operands.scale.begin(), operands.scale.end(), 1.0f);
                for (std::int64_t j = 0; j < 256; ++j)
                    operands.codes[std::size_t(j * 40 + place)] = std::uint8_t(j);
                const std::vector<float> got = operands.product(*kernels);
                for (std::size_t j = 0; j < 256; ++j) {
                    const double want = value_of(type, std::uint8_t(j));
                    INFO(isa << ", code " << j << " at " << place);
                    CHECK((double(got[j]) == want || (std::isnan(want) && std::isnan(got[j]))));
                }
            }
}

TEST_CASE("code products: values of rows are codes times scale", "[gemm][quantize]") {
    const CodeCase cases[] = {{int8, 1, 96, 3, 3},
                              {int8, 1, 1, 1, 2},
                              {int8, 1, 45, 1, 256},
                              {float8_e4m3fn, 1, 64, 1, 5},
                              {float8_e4m3fn, 1, 77, 1, 256}};
    for (const auto& [isa, kernels] : variants())
        for (const CodeCase& c : cases) {
            if (kernels->code_values == nullptr) continue;
            const Operands o(c, 3);
            std::vector<float> given = o.scale, got(std::size_t(c.count * o.ldx), 77);
            if (c.type != int8)
                for (float& s : given) s *= 256;
            kernels->code_values({nullptr, 0, 0, o.codes.data(), c.type, given.data(), c.groups, c.k, c.count,
                                  got.data(), o.ldx});
            int wrong = 0;
            for (std::int64_t j = 0; j < c.count; ++j)
                for (std::int64_t p = 0; p < c.k; ++p) {
                    const double want = value_of(c.type, o.codes[std::size_t(j * c.k + p)]) *
                                        double(o.scale[std::size_t(j * c.groups + p / (c.k / c.groups))]);
                    wrong += got[std::size_t(j * o.ldx + p)] != float(want);
                }
            INFO(isa << ", " << c.k << ", " << c.groups << " groups");
            CHECK(wrong == 0);
        }
}
