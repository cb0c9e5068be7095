// MXFP8: scales of 32 consecutive elements, as quantize() makes them and as products read them.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "mezzo/amp.h"
#include "mezzo/autograd.h"
#include "mezzo/nn.h"
#include "mezzo/ops.h"
#include "mezzo/quantize.h"
#include "ops/gemm/fp8_product.h"

using namespace mezzo;
using amp::Autocast;
using amp::Fp8;
using Catch::Matchers::Contains;

namespace {

constexpr float inf = std::numeric_limits<float>::infinity();
constexpr Fp8 mx{.granularity = Granularity::block32, .least_size = 32};

Quantized quantized(const Tensor& x, Dtype dtype = float8_e4m3fn) {
    return quantize(x, {.dtype = dtype, .granularity = Granularity::block32});
}
Tensor wide(const Tensor& x) { return x.detach().to(float64); }
// dequantize(quantize(x)) in float64, with the codes and scales of quantize().
Tensor reference(const Tensor& x) {
    const Quantized q = quantized(x);
    const Tensor scale = wide(q.scale).unsqueeze(-1);
    return (wide(q.codes.to(float32)).reshape({x.size(0), -1, 32}) / scale).reshape(x.shape());
}
// The largest difference relative to the largest element.
double error(const Tensor& x, const Tensor& expected) {
    return (max(abs(wide(x) - expected)) / max(abs(expected))).item<double>();
}
// Blocks whose magnitudes differ by up to 2^(2 spread).
Tensor numbers(const Shape& shape, double spread) {
    const Tensor exponent = round(rand({shape[0], shape[1] / 32, 1}) * (2 * spread) - spread);
    return (randn({shape[0], shape[1] / 32, 32}) * exp2(exponent)).reshape(shape);
}

}  // namespace

TEST_CASE("mxfp8: each block has the largest power of two that does not saturate it", "[amp]") {
    manual_seed(3);
    for (const Dtype dtype : {float8_e4m3fn, float8_e5m2})
        for (const Dtype from : {float32, bfloat16}) {
            CAPTURE(name(dtype), name(from));
            const Tensor x = numbers({5, 96}, 40).to(from);
            const Quantized q = quantized(x, dtype);
            CHECK(q.codes.dtype() == dtype);
            CHECK(q.codes.shape() == x.shape());
            CHECK(q.scale.shape() == Shape{5, 3});
            CHECK(q.inverse.dtype() == float8_e8m0fnu);
            const std::vector<float> values = x.to(float32).to_vector<float>(),
                                     scales = q.scale.to_vector<float>(),
                                     codes = q.codes.to(float32).to_vector<float>(),
                                     factors = q.inverse.to(float32).to_vector<float>();
            const double top = dtype_info(dtype).max;
            for (std::size_t block = 0; block < scales.size(); ++block) {
                double largest = 0;
                for (std::size_t i = 32 * block; i < 32 * block + 32; ++i)
                    largest = std::max(largest, std::fabs(double(values[i])));
                CHECK(scales[block] == std::ldexp(1.0f, std::ilogb(top / largest)));
                CHECK(factors[block] == std::ldexp(1.0f, int(std::ceil(std::log2(largest / top)))));
                const auto part =
                    Tensor::from(std::vector<float>(values.begin() + std::ptrdiff_t(32 * block),
                                                    values.begin() + std::ptrdiff_t(32 * block + 32)),
                                 {32});
                CHECK((part * double(scales[block])).to(dtype).to(float32).to_vector<float>() ==
                      std::vector<float>(codes.begin() + std::ptrdiff_t(32 * block),
                                         codes.begin() + std::ptrdiff_t(32 * block + 32)));
            }
        }
}

TEST_CASE("mxfp8: blocks of zeros, and of numbers that are not finite", "[amp]") {
    std::vector<float> values(4 * 32, 0.0f);
    values[32] = inf, values[33] = 3;
    values[64] = std::nanf(""), values[65] = -5;
    values[96] = 448;
    const Quantized q = quantized(Tensor::from(values, {2, 64}));
    CHECK(q.scale.to_vector<float>() == std::vector<float>{1, 1, 1, 1});
    const std::vector<float> back = dequantize(q).to_vector<float>();
    for (std::size_t i = 0; i < back.size(); ++i) {
        CAPTURE(i);
        if (i == 32 || i == 64)
            CHECK(std::isnan(back[i]));
        else
            CHECK(back[i] == values[i]);
    }
}

TEST_CASE("mxfp8: scales at both ends", "[amp]") {
    std::vector<float> values(3 * 32, 0.0f);
    values[0] = std::numeric_limits<float>::denorm_min();
    values[32] = 0x1.cp127f;
    values[64] = 0x1p-118f;
    const Quantized q = quantized(Tensor::from(values, {96}));
    CHECK(q.scale.to_vector<float>() == std::vector<float>{0x1p126f, 0x1p-119f, 0x1p126f});
    CHECK(q.inverse.to(float32).to_vector<float>() == std::vector<float>{0x1p-126f, 0x1p119f, 0x1p-126f});
    const std::vector<float> back = dequantize(q).to_vector<float>();
    CHECK(back[0] == 0);  // below half of the smallest code
    CHECK(back[32] == 0x1.cp127f);
    CHECK(back[64] == 0x1p-118f);
    CHECK(std::isfinite(dequantize(q, bfloat16).to(float32).to_vector<float>()[32]));
}

TEST_CASE("mxfp8: numbers that are rounded beyond the largest one stay finite", "[amp]") {
    const Tensor top = full({32, 32}, 0x1.fcp127);  // its code is 256 with a factor of 2^120
    for (const Granularity granularity : {Granularity::block32, Granularity::row, Granularity::tensor})
        for (const Dtype codes : {float8_e4m3fn, float8_e5m2}) {
            const QuantizeOptions options{.dtype = codes, .granularity = granularity};
            CAPTURE(int(granularity), name(codes));
            for (const Dtype dtype : {float16, bfloat16, float32, float64}) {
                const double largest = std::min(dtype_info(dtype).max, dtype_info(float32).max);
                const Quantized q = quantize(top, options), minus = quantize(-top, options);
                CHECK(equal(wide(dequantize(q, dtype)), full({32, 32}, largest, {.dtype = float64})));
                CHECK(equal(wide(dequantize(minus, dtype)), full({32, 32}, -largest, {.dtype = float64})));
            }
            if (granularity != Granularity::block32) continue;
            const Quantized q = quantize(top, options);
            CHECK(equal(product(q, quantized(zeros({32, 32}))), zeros({32, 32})));
            const Tensor y = product(q, quantized(full({32, 32}, 1e-38)));
            CHECK(max(abs(y - 112.0)).item<float>() < 0.5f);
        }
    // Infinite codes, which quantize() does not make, stay infinite.
    const Quantized infinite{full({4}, double(inf)).to(float8_e5m2), ones({1})};
    CHECK(dequantize(infinite).to_vector<float>() == std::vector<float>(4, inf));
}

TEST_CASE("mxfp8: dequantize() names a scale of a wrong shape", "[amp]") {
    const Quantized q = quantized(randn({4, 64}));
    const auto fails = [](const Quantized& wrong, const char* scale, const char* reason) {
        CHECK_THROWS_WITH(dequantize(wrong), Contains("dequantize: the codes have shape") &&
                                                 Contains(scale) && Contains(reason));
    };
    fails({q.codes, q.scale}, "the scale [4, 2]", "need their inverse in float8_e8m0fnu");
    fails({q.codes.t(), q.scale.t(), q.inverse.t()}, "the scale [2, 4]", "for each 32");
    fails({q.codes, q.scale.slice(1, 0, 1), q.inverse.slice(1, 0, 1)}, "the scale [4, 1]", "for each 32");
    fails({q.codes, ones({1, 1}), q.inverse}, "the scale [1, 1]", "for each 32");
    fails({q.codes, ones({4})}, "the scale [4]", "must be 1 or that of the codes");
    CHECK(dequantize({q.codes, ones({4, 1})}).shape() == q.codes.shape());
}

TEST_CASE("mxfp8: shapes and errors", "[amp]") {
    CHECK(quantized(randn({32})).scale.shape() == Shape{1});
    CHECK(quantized(randn({2, 3, 64})).scale.shape() == Shape{2, 3, 2});
    CHECK(quantized(empty({0, 64})).scale.shape() == Shape{0, 2});
    CHECK(quantized(empty({4, 0})).codes.shape() == Shape{4, 0});
    const Tensor x = randn({64, 3}).t();
    CHECK(equal(dequantize(quantized(x)), dequantize(quantized(x.contiguous()))));
    CHECK_THROWS_WITH(quantized(randn({2, 48})), Contains("[2, 48]") && Contains("a multiple of 32"));
    CHECK_THROWS_WITH(quantized(Tensor::from({5}, {})), Contains("without dimensions"));
    CHECK_THROWS_WITH(quantize(randn({32}), {.granularity = Granularity::block32, .exact_scale = true}),
                      Contains("powers of two"));
    CHECK_THROWS_WITH(Autocast({.fp8 = Fp8{.granularity = Granularity::block32, .exact_scale = true}}),
                      Contains("powers of two"));
}

TEST_CASE("mxfp8: linear and its gradients are those of the quantized operands", "[amp]") {
    manual_seed(5);
    for (const Dtype low : {bfloat16, float16})
        for (const double spread : {0.0, 6.0, 55.0}) {
            if (low == float16 && spread > 6) continue;
            CAPTURE(name(low), spread);
            // With a spread of 55 the factors are beyond what bfloat16 holds together with the codes.
            const Tensor x = numbers({64, 96}, spread).to(low).set_requires_grad();
            const Tensor w = numbers({32, 96}, spread / 8).to(low).to(float32).set_requires_grad();
            const Tensor b = randn({32}).set_requires_grad(), dy = numbers({64, 32}, spread / 8).to(low);
            Tensor y;
            {
                const Autocast scope({.dtype = low, .fp8 = mx});
                y = linear(x, w, b);
            }
            y.backward({.gradient = dy});
            const double rounding = low == bfloat16 ? 0x1p-8 : 0x1p-11;
            CHECK(error(y, matmul(reference(x), reference(w).t()) + wide(b)) < 1.01 * rounding);
            const Tensor dyt = reference(dy.t().contiguous()), xt = reference(x.detach().t().contiguous());
            CHECK(error(x.grad(), matmul(reference(dy), reference(w.detach().t().contiguous()).t())) <
                  1.01 * rounding);
            CHECK(error(w.grad(), matmul(dyt, xt.t())) < 1e-6);
            CHECK(error(b.grad(), sum(wide(dy), 0)) < 1e-6);
        }
}

TEST_CASE("mxfp8: blocks of one row keep their scales in a product", "[amp]") {
    // A large block meets zeros, so that the result comes from the small one alone.
    Tensor x = full({32, 64}, 1e-30), w = zeros({32, 64});
    x.slice(1, 0, 32).fill_(1e30);
    w.slice(1, 32, 64).fill_(1e30);
    const Autocast scope({.dtype = bfloat16, .fp8 = mx});
    const std::vector<float> y = linear(x, w).to(float32).to_vector<float>();
    for (const float element : y) CHECK(element == Approx(32).epsilon(0.1));
}

TEST_CASE("mxfp8: products keep numbers that bfloat16 has not", "[amp]") {
    Tensor x = full({16, 64}, 0x1p-134), w = full({16, 64}, 0x1p120);
    x.slice(1, 0, 1).fill_(0x1p-126), w.slice(1, 0, 1).fill_(0);
    x.slice(1, 32, 64).fill_(0);
    CHECK(equal(product(quantized(x), quantized(w)), full({16, 16}, 31 * 0x1p-14)));
    CHECK(equal(product(quantized(w), quantized(x)), full({16, 16}, 31 * 0x1p-14)));
}

TEST_CASE("mxfp8: sizes that are no multiple of 32 stay in 16 bit, NaN reaches the result", "[amp]") {
    amp::clear_autocast_report();
    amp::collect_autocast_report(true);
    Tensor y;
    {
        const Autocast scope({.dtype = bfloat16, .fp8 = mx});
        (void)linear(randn({64, 48}), randn({32, 48}));
        Tensor x = ones({32, 64});
        x.slice(0, 3, 4).slice(1, 40, 41).fill_(double(inf));
        y = linear(x, ones({32, 64}));
    }
    amp::collect_autocast_report(false);
    std::vector<std::string> lines;
    for (const amp::AutocastReportLine& line : amp::autocast_report())
        if (line.op == "linear") lines.push_back(std::string(name(line.computed)) + " " + line.reason);
    amp::clear_autocast_report();
    CHECK(lines == std::vector<std::string>{"bfloat16 a size is no multiple of 32", "float8_e4m3fn "});
    const std::vector<float> values = y.to(float32).to_vector<float>();
    CHECK(std::isnan(values[3 * 32]));
    CHECK(values[2 * 32] == 64);
}
