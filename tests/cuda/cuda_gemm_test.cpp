// cuda::gemm against a double-precision reference; the same cases on the emulated device and on a GPU.
#include "cuda/gemm/gemm.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <random>

#include "core/values.h"
#include "cuda/runtime/runtime.h"
#include "mezzo/error.h"
#include "tests/cuda/device_array.h"
#include "tests/support/support.h"

namespace {

using namespace mezzo;
using test::DeviceArray;

double read(const std::vector<unsigned char>& bytes, Dtype dtype, std::int64_t i) {
    const unsigned char* p = bytes.data() + i * std::int64_t(size_of(dtype));
    return visit_dtype<Dtypes::floating>(dtype, [p]<class T>(std::type_identity<T>) {
        T value;
        std::memcpy(&value, p, sizeof value);
        return convert_value<double>(value);
    });
}

void write(std::vector<unsigned char>& bytes, Dtype dtype, std::int64_t i, double value) {
    unsigned char* p = bytes.data() + i * std::int64_t(size_of(dtype));
    visit_dtype<Dtypes::floating>(dtype, [&]<class T>(std::type_identity<T>) {
        const T element = convert_value<T>(value);
        std::memcpy(p, &element, sizeof element);
    });
}

double epsilon(Dtype dtype) {
    switch (dtype) {
        case Dtype::float16:
            return 0x1p-10;
        case Dtype::bfloat16:
            return 0x1p-7;
        case Dtype::float32:
            return 0x1p-21;
        default:
            return 0x1p-48;
    }
}

double apply(Activation activation, double x) {
    switch (activation) {
        case Activation::none:
            return x;
        case Activation::relu:
            return x < 0 ? 0 : x;
        case Activation::gelu:
            return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
        case Activation::gelu_tanh:
            return 0.5 * x *
                   (1 + std::tanh(std::sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
    }
    return x;
}

// Sizes and types of a Gemm. run() makes operands with `pad` elements between rows and `offset` elements
// before the first, and compares C, the pre-activation and the padding.
struct Case {
    std::int64_t m = 5, n = 7, k = 9;
    bool trans_a = false, trans_b = false;
    Dtype a = float32, b = float32, c = float32, bias_type = float32;
    bool bias = false, pre = false;
    Activation activation = Activation::none;
    float alpha = 1, beta = 0;
    std::int64_t batch = 1, pad = 0, offset = 0;
    bool share_b = false;  // one B for the whole batch

    void run() const;
};

std::vector<unsigned char> random_bytes(Dtype dtype, std::int64_t count, unsigned seed) {
    std::vector<unsigned char> bytes(std::size_t(count) * size_of(dtype));
    std::mt19937 generator(seed);
    std::uniform_real_distribution<double> uniform(-1, 1);
    for (std::int64_t i = 0; i < count; ++i) write(bytes, dtype, i, uniform(generator));
    return bytes;
}

void Case::run() const {
    cuda::Gemm g;
    g.m = m, g.n = n, g.k = k, g.batch = batch;
    g.trans_a = trans_a, g.trans_b = trans_b, g.alpha = alpha, g.beta = beta;
    g.a_type = a, g.b_type = b, g.c_type = c, g.bias_type = bias_type, g.activation = activation;
    g.lda = (trans_a ? m : k) + pad, g.ldb = (trans_b ? k : n) + pad, g.ldc = n + pad;
    const std::int64_t size_a = (trans_a ? k : m) * g.lda, size_b = (trans_b ? n : k) * g.ldb,
                       size_c = m * g.ldc;
    g.stride_a = size_a + pad, g.stride_b = share_b ? 0 : size_b, g.stride_c = size_c + 2 * pad;
    const auto host_a = random_bytes(a, offset + batch * g.stride_a, 1);
    const auto host_b = random_bytes(b, offset + (share_b ? size_b : batch * g.stride_b), 2);
    const auto host_c = random_bytes(c, offset + batch * g.stride_c, 3);
    const auto host_bias = random_bytes(bias_type, offset + n, 4);
    const DeviceArray<unsigned char> on_a(host_a), on_b(host_b), on_c(host_c), on_bias(host_bias),
        on_pre(host_c);
    const auto at = [this](const DeviceArray<unsigned char>& array, Dtype dtype) {
        return array.data() + offset * std::int64_t(size_of(dtype));
    };
    g.a = at(on_a, a), g.b = at(on_b, b), g.c = at(on_c, c);
    if (bias) g.bias = at(on_bias, bias_type);
    if (pre) g.pre_activation = at(on_pre, c);
    cuda::gemm(g);
    const auto got = on_c.host(), got_pre = on_pre.host();

    const double tolerance = epsilon(c) * 4;
    for (std::int64_t i = 0; i < offset; ++i) REQUIRE(read(got, c, i) == read(host_c, c, i));
    for (std::int64_t s = 0; s < batch; ++s)
        for (std::int64_t i = 0; i < m; ++i)
            for (std::int64_t j = 0; j < g.ldc; ++j) {
                const std::int64_t index = offset + s * g.stride_c + i * g.ldc + j;
                if (j >= n) {
                    REQUIRE(read(got, c, index) == read(host_c, c, index));
                    continue;
                }
                double sum = 0, size = 1;
                for (std::int64_t l = 0; l < k; ++l) {
                    const double x =
                        read(host_a, a, offset + s * g.stride_a + (trans_a ? l * g.lda + i : i * g.lda + l));
                    const double y =
                        read(host_b, b, offset + s * g.stride_b + (trans_b ? j * g.ldb + l : l * g.ldb + j));
                    sum += x * y;
                    size += std::abs(x * y) * 0x1p-6;
                }
                double want = double(alpha) * sum;
                if (beta != 0) want += double(beta) * read(host_c, c, index);
                if (bias) want += read(host_bias, bias_type, offset + j);
                if (pre)
                    REQUIRE(std::abs(read(got_pre, c, index) - want) <= tolerance * (size + std::abs(want)));
                want = apply(activation, want);
                INFO("element " << s << " " << i << " " << j << ": " << read(got, c, index) << " for "
                                << want);
                REQUIRE(std::abs(read(got, c, index) - want) <= tolerance * (size + std::abs(want)));
            }
}

}  // namespace

TEST_CASE("cuda gemm: transposes, types, padding, offsets", "[cuda][gemm]") {
    if (test::no_device()) return;
    const bool trans_a = GENERATE(false, true), trans_b = GENERATE(false, true);
    for (Dtype type : {float16, bfloat16, float32, float64})
        for (std::int64_t pad : {0, 3})
            for (std::int64_t offset : {0, 1}) {
                INFO("type " << int(type) << " pad " << pad << " offset " << offset);
                Case{.trans_a = trans_a,
                     .trans_b = trans_b,
                     .a = type,
                     .b = type,
                     .c = type,
                     .pad = pad,
                     .offset = offset}
                    .run();
            }
}

TEST_CASE("cuda gemm: mixed operand types", "[cuda][gemm]") {
    if (test::no_device()) return;
    for (Dtype a : {float16, bfloat16, float32, float64})
        for (Dtype b : {float16, bfloat16, float32, float64})
            for (Dtype c : {float16, bfloat16, float32, float64}) {
                INFO("types " << int(a) << " " << int(b) << " " << int(c));
                Case{.m = 4,
                     .n = 18,
                     .k = 20,
                     .trans_b = true,
                     .a = a,
                     .b = b,
                     .c = c,
                     .bias_type = b,
                     .bias = true}
                    .run();
            }
}

TEST_CASE("cuda gemm: bias, activation, pre-activation", "[cuda][gemm]") {
    if (test::no_device()) return;
    const auto activation =
        GENERATE(Activation::none, Activation::relu, Activation::gelu, Activation::gelu_tanh);
    for (Dtype type : {float16, float32, float64})
        for (Dtype bias_type : {type, float32})
            for (bool bias : {false, true})
                for (bool pre : {false, true})
                    for (std::int64_t offset : {0, 1}) {  // 1: the bias is not 16-byte aligned
                        INFO("type " << int(type) << " bias " << bias << int(bias_type) << " pre " << pre
                                     << " offset " << offset);
                        Case{.n = 6,
                             .trans_b = true,
                             .a = type,
                             .b = type,
                             .c = type,
                             .bias_type = bias_type,
                             .bias = bias,
                             .pre = pre,
                             .activation = activation,
                             .offset = offset}
                            .run();
                    }
}

TEST_CASE("cuda gemm: results of several blocks", "[cuda][gemm]") {
    if (test::no_device()) return;
    Case{.m = 40, .n = 45, .bias = true, .activation = Activation::gelu}.run();
    Case{.m = 40, .n = 45, .k = 20, .b = float16, .bias = true, .activation = Activation::relu}.run();
}

TEST_CASE("cuda gemm: alpha, beta and batches", "[cuda][gemm]") {
    if (test::no_device()) return;
    Case{.alpha = 0.5f, .beta = 1}.run();
    Case{.alpha = -2, .beta = 0.25f, .batch = 3, .pad = 2}.run();
    Case{.a = float16, .b = float16, .c = float32, .beta = 1, .batch = 2, .share_b = true}.run();
    Case{.a = float16, .b = bfloat16, .beta = 1, .batch = 2, .pad = 1, .share_b = true}.run();
    Case{.bias = true, .beta = 1, .batch = 2}.run();
    Case{.bias = true, .pre = true, .activation = Activation::gelu, .batch = 2, .pad = 1}.run();
}

TEST_CASE("cuda gemm: degenerate sizes", "[cuda][gemm]") {
    if (test::no_device()) return;
    for (std::int64_t k : {0, 1, 64, 70})
        for (std::int64_t m : {0, 1, 17})
            for (std::int64_t n : {0, 1, 17}) {
                INFO("m " << m << " n " << n << " k " << k);
                Case{.m = m, .n = n, .k = k, .bias = true}.run();
                Case{.m = m, .n = n, .k = k, .beta = 2}.run();
                Case{.m = m,
                     .n = n,
                     .k = k,
                     .a = float16,
                     .b = float16,
                     .c = float16,
                     .bias_type = float16,
                     .bias = true,
                     .activation = Activation::relu}
                    .run();
            }
    Case{.batch = 0}.run();
}

TEST_CASE("cuda gemm: NaN is not lost and old contents do not leak in", "[cuda][gemm]") {
    if (test::no_device()) return;
    const DeviceArray<float> a(std::vector<float>{NAN, 1, 2, 3}), b(std::vector<float>{1, 0, 0, 1});
    const DeviceArray<float> c(std::vector<float>(4, NAN));
    cuda::Gemm g;
    g.m = g.n = g.k = g.lda = g.ldb = g.ldc = 2;
    g.a = a.data(), g.b = b.data(), g.c = c.data();
    cuda::gemm(g);
    const auto got = c.host();
    REQUIRE(std::isnan(got[0]));
    REQUIRE(std::isnan(got[1]));
    REQUIRE(got[2] == 2);
    REQUIRE(got[3] == 3);
    g.k = 0;
    cuda::gemm(g);
    REQUIRE(c.host() == std::vector<float>(4, 0.0f));
}

TEST_CASE("cuda gemm: bad input is refused", "[cuda][gemm]") {
    if (test::no_device()) return;
    const DeviceArray<float> x(16);
    cuda::Gemm g;
    g.m = g.n = g.k = g.lda = g.ldb = g.ldc = 2;
    g.a = g.b = x.data();
    g.c = x.data() + 8;
    cuda::Gemm bad = g;
    bad.ldb = 1;
    REQUIRE_THROWS_AS(cuda::gemm(bad), Error);
    bad = g;
    bad.c_type = int64;
    REQUIRE_THROWS_AS(cuda::gemm(bad), Error);
    bad = g;
    bad.beta = 1, bad.activation = Activation::relu;
    REQUIRE_THROWS_AS(cuda::gemm(bad), Error);
    bad = g;
    bad.batch = 2, bad.stride_c = 1;
    REQUIRE_THROWS_AS(cuda::gemm(bad), Error);
    bad = g;
    bad.m = -1;
    REQUIRE_THROWS_AS(cuda::gemm(bad), Error);
}

TEST_CASE("cuda gemm: a shape seen before costs no synchronisation", "[cuda][gemm]") {
    if (test::no_device()) return;
    const DeviceArray<float> a(std::vector<float>(100, 1.0f)), c(100);
    cuda::Gemm g;
    g.m = g.n = g.k = g.lda = g.ldb = g.ldc = 10;
    g.a = g.b = a.data(), g.c = c.data();
    cuda::gemm(g);
    const auto before = cuda::counters();
    for (int i = 0; i < 3; ++i) cuda::gemm(g);
    REQUIRE(cuda::counters().host_syncs == before.host_syncs);
    REQUIRE(cuda::counters().launches == before.launches + 3);
    REQUIRE(c.host() == std::vector<float>(100, 10.0f));
}

TEST_CASE("cuda gemm: the fallback adds a long k in blocks", "[cuda][gemm]") {
    if (test::no_device()) return;
    const Device device{DeviceType::cuda};
    const std::int64_t k = 1 << 14;
    const Tensor first = full({1}, 1, {.device = device}), rest = full({k - 1}, 0x1p-25, {.device = device});
    const Tensor a = cat({first, rest}), b = full({k}, 1, {.device = device}),
                 c = empty({1}, {.device = device});
    cuda::Gemm g{};
    g.m = g.n = 1;
    g.k = k;
    g.a = raw(a);
    g.b = raw(b);
    g.c = raw(c);
    g.a_type = g.b_type = g.c_type = float32;
    g.lda = k;
    g.ldb = g.ldc = 1;
    cuda::gemm_fallback(g);  // a chain would stay at 1
    CHECK(test::doubles(c)[0] == Approx(1 + double(k - 1) * 0x1p-25).epsilon(1e-4));
}
