// Products on AMX tiles: planes of float16 and float32, errors, exactness, threads, permission. gemm_test and
// gemm_special_test run them as two more variants; without AMX only the model of the tiles runs.
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "cpu/amx/amx.h"
#include "cpu/attention/attention_products.h"
#include "cpu/buffer.h"
#include "cpu/gemm/choice.h"
#include "cpu/gemm/packed_weight.h"
#include "cpu/parallel.h"
#include "mezzo/autograd.h"
#include "mezzo/matmul_precision.h"
#include "tests/cpu/gemm_case.h"
#include "tests/support/support.h"

using namespace gemm_case;

namespace {

std::vector<Variant> tile_variants() {
    std::vector<Variant> list;
    for (const Variant& v : variants())
        if (v.kernels->tiles) list.push_back(v);
    return list;
}

// Sets the precision of float32 products for a scope.
struct Precision {
    explicit Precision(Float32MatmulPrecision level) { set_float32_matmul_precision(level); }
    ~Precision() { set_float32_matmul_precision(Float32MatmulPrecision::highest); }
    Precision(const Precision&) = delete;
    Precision& operator=(const Precision&) = delete;
};

// c[m, n] = a[m, k] b[k, n], dense rows.
template <class T> std::vector<float> product(const std::vector<T>& a, const std::vector<T>& b,
                                              std::int64_t m, std::int64_t n, std::int64_t k, Dtype type,
                                              const Variant& v) {
    std::vector<float> c(static_cast<std::size_t>(m * n));
    cpu::gemm({.m = m,
               .n = n,
               .k = k,
               .a = a.data(),
               .a_type = type,
               .lda = k,
               .b = b.data(),
               .b_type = type,
               .ldb = n,
               .c = c.data(),
               .ldc = n},
              *v.kernels);
    return c;
}

// Largest and root mean square error of a 64 x 64 product against float64, in 2^-24 of the sum of magnitudes.
struct Error24 {
    double largest = 0, rms = 0;
};

template <class T>
Error24 error_of(const Variant& v, Dtype type, std::int64_t k, const std::function<double()>& draw) {
    constexpr std::int64_t m = 64, n = 64;
    std::vector<T> a(std::size_t(m * k)), b(std::size_t(k * n));
    for (T& x : a) x = T(float(draw()));
    for (T& x : b) x = T(float(draw()));
    const std::vector<float> c = product(a, b, m, n, k, type, v);
    Error24 error;
    for (std::int64_t i = 0; i < m; ++i)
        for (std::int64_t j = 0; j < n; ++j) {
            double sum = 0, size = 0;
            for (std::int64_t p = 0; p < k; ++p) {
                const double term =
                    double(float(a[std::size_t(i * k + p)])) * float(b[std::size_t(p * n + j)]);
                sum += term, size += std::fabs(term);
            }
            const double e = std::fabs(c[std::size_t(i * n + j)] - sum) / size * 0x1p24;
            error.largest = std::max(error.largest, e);
            error.rms += e * e / double(m * n);
        }
    error.rms = std::sqrt(error.rms);
    return error;
}

std::vector<std::pair<const char*, std::function<double()>>> distributions() {
    static std::mt19937_64 random(1);
    static std::normal_distribution<double> normal;
    static std::uniform_real_distribution<double> uniform;
    return {{"normal", [] { return normal(random); }},
            {"uniform in [0, 1)", [] { return uniform(random); }},
            {"+-e^(2 normal)", [] { return (random() & 1 ? 1 : -1) * std::exp(2 * normal(random)); }}};
}

}  // namespace

TEST_CASE("tiles: every float16 number passes exactly", "[gemm][tiles]") {
    // 2048 x 32 numbers times the identity; infinities and NaN are computed by vectors, where they are
    // multiplied by 0.
    constexpr std::int64_t m = 2048, k = 32;
    std::vector<float16_t> a(m * k), identity(k * k);
    for (std::size_t i = 0; i < a.size(); ++i) {
        a[i] = float16_t::from_bits(std::uint16_t(i));
        if (!std::isfinite(float(a[i]))) a[i] = float16_t(0.0f);
    }
    for (std::size_t i = 0; i < k; ++i) identity[i * k + i] = float16_t(1.0f);
    for (const Variant& v : tile_variants()) {
        INFO(v.name);
        const std::vector<float> c = product(a, identity, m, k, k, float16, v);
        int wrong = 0;
        for (std::size_t i = 0; i < a.size(); ++i) wrong += c[i] != float(a[i]);
        CHECK(wrong == 0);
    }
}

TEST_CASE("tiles: products of float16 extremes are exact", "[gemm][tiles]") {
    // Every exponent with mantissas of no, one, all and some bits set; each number times each.
    std::vector<float16_t> x;
    for (unsigned exponent = 0; exponent < 31; ++exponent)
        for (const unsigned mantissa :
             {0u, 1u, 2u, 7u, 8u, 9u, 0x155u, 0x2aau, 0x1ffu, 0x200u, 0x3f8u, 0x3ffu})
            for (const unsigned sign : {0u, 0x8000u})
                x.push_back(float16_t::from_bits(std::uint16_t(sign | exponent << 10 | mantissa)));
    const auto n = std::int64_t(x.size());
    for (const Variant& v : tile_variants()) {
        INFO(v.name);
        const std::vector<float> c = product(x, x, n, n, 1, float16, v);
        int wrong = 0;
        for (std::size_t i = 0; i < x.size(); ++i)
            for (std::size_t j = 0; j < x.size(); ++j)
                wrong += c[i * x.size() + j] != float(x[i]) * float(x[j]);
        CHECK(wrong == 0);
    }
}

TEST_CASE("tiles: float16 infinities and NaN, in either operand", "[gemm][tiles]") {
    constexpr std::int64_t m = 40, n = 70, k = 50;
    const float inf = std::numeric_limits<float>::infinity();
    for (const Variant& v : tile_variants())
        for (const float special : {inf, -inf, std::numeric_limits<float>::quiet_NaN()}) {
            std::vector<float16_t> a(m * k, float16_t(1.0f)), b(k * n, float16_t(0.5f));
            b[3 * n + 35] = float16_t(special);
            std::vector<float> c = product(a, b, m, n, k, float16, v);
            int wrong = 0;
            for (std::int64_t i = 0; i < m; ++i)
                for (std::int64_t j = 0; j < n; ++j) {
                    const float got = c[std::size_t(i * n + j)], want = j == 35 ? special : 25.0f;
                    wrong += std::isnan(want) ? !std::isnan(got) : got != want;
                }
            CHECK(wrong == 0);
            a[7 * k + 1] = float16_t(special);
            c = product(a, b, m, n, k, float16, v);
            for (std::int64_t j = 0; j < n; ++j)
                if (j != 35) CHECK((c[7 * n + j] == special || std::isnan(special)));
            CHECK(c[0] == 25.0f);
        }
}

TEST_CASE("tiles: errors against float64", "[gemm][tiles]") {
    // Bounds in 2^-24 of the sum of magnitudes; measured on hardware 0.2 to 5 (largest 22), see
    // docs/guide/numerics.md.
    for (const Variant& v : tile_variants())
        for (const std::int64_t k : {256, 2048})
            for (const auto& [name, draw] : distributions()) {
                if (v.name == "tile model" && k > 256) continue;
                INFO(v.name << " " << name << " " << k);
                const Error24 f16 = error_of<float16_t>(v, float16, k, draw);
                CHECK(f16.rms < 6);
                CHECK(f16.largest < 40);
                {
                    const Precision high(Float32MatmulPrecision::high);
                    const Error24 e = error_of<float>(v, float32, k, draw);
                    CHECK(e.rms < 6);
                    CHECK(e.largest < 40);
                }
                const Precision medium(Float32MatmulPrecision::medium);
                const Error24 e = error_of<float>(v, float32, k, draw);
                CHECK(e.largest < 512);  // 2^-15
                CHECK(e.largest > 2);    // else it was not this product
            }
}

TEST_CASE("tiles: float32 in three planes down to 2e-31", "[gemm][tiles]") {
    const Precision high(Float32MatmulPrecision::high);
    std::mt19937 random(5);
    for (const Variant& v : tile_variants())
        for (const int exponent : {-102, -60, 0, 60, 126}) {
            std::vector<float> a(32 * 32), identity(32 * 32);
            for (float& x : a) x = std::ldexp(1.0f + float(random() >> 9) * 0x1p-23f, exponent);
            for (std::size_t i = 0; i < 32; ++i) identity[i * 33] = 1.0f;
            CHECK(product(a, identity, 32, 32, 32, float32, v) == a);
        }
    // Products of parts with opposite signs would overflow where the products of the numbers do not, or
    // differently: vectors compute these.
    const float edge = 0x1.fffffep63f;
    const std::vector<float> huge(32 * 32, 1e30f), one_column = [&] {
        std::vector<float> first(32 * 32);
        for (std::size_t i = 0; i < 32; ++i) first[i] = edge;
        return first;
    }();
    std::vector<float> one_row(32 * 32);
    for (std::size_t i = 0; i < 32; ++i) one_row[i * 32] = edge;
    for (const Variant& v : tile_variants()) {
        CHECK(product(huge, huge, 32, 32, 32, float32, v)[7] == std::numeric_limits<float>::infinity());
        CHECK(product(one_row, one_column, 32, 32, 32, float32, v)[40] == edge * edge);
    }
    // Beyond bfloat16's largest number a number has no planes.
    const std::vector<float> large(32 * 32, 3.4e38f), small(32 * 32, 0x1p-20f);
    for (const Variant& v : tile_variants())
        CHECK(product(large, small, 32, 32, 32, float32, v)[5] == Approx(32 * 3.4e38 * 0x1p-20));
}

TEST_CASE("tiles: one rounding behind very long sums, strips, ranges", "[gemm][tiles]") {
    // 1 + (k - 1) 2^-13 in every element: right only if no range is lost or added twice.
    for (const Variant& v : tile_variants())
        for (const std::int64_t k : {8193, 12321}) {
            const bool model = v.name == "tile model";
            const std::int64_t m = 41, n = model ? 33 : 2100;
            Matrix a(m, k, bfloat16), b(k, n, bfloat16), c(m, n, bfloat16), sums(m, n, float32),
                bias(1, n, float32);
            a.fill([] { return 0x1p-13; }), b.fill([] { return 1.0; }), bias.fill([] { return 2.0; });
            sums.fill([] { return 5.0; });
            for (std::int64_t i = 0; i < m; ++i) a.set(0, i, 0, 1.0);
            Gemm g = gemm_of(a, b, c);
            g.bias = bias.data(), g.activation = Activation::relu;
            cpu::gemm(g, *v.kernels);
            const double want = 1 + double(k - 1) * 0x1p-13;
            CHECK(c.at(0, 0, 0) == double(float(bfloat16_t(float(want + 2)))));
            CHECK(c.at(0, m - 1, n - 1) == c.at(0, 0, 0));
            g.c = sums.data(), g.c_type = float32, g.ldc = sums.ld, g.beta = 2;
            g.bias = nullptr, g.activation = Activation::none;
            cpu::gemm(g, *v.kernels);
            CHECK(sums.at(0, 3, n - 1) == want + 10);
            CHECK(c.guards_intact());
            CHECK(sums.guards_intact());
        }
}

TEST_CASE("tiles: products of attention", "[gemm][tiles][attention]") {
    constexpr std::int64_t m = 70, n = 45, k = 90, from_row = 32, from_step = 64;
    using Types = cpu::AttentionProducts::Types;
    std::mt19937 random(9);
    const auto uniform = [&] { return float(random()) * 0x1p-31f - 1; };
    for (const Variant& v : tile_variants())
        for (const Dtype type : {bfloat16, float16}) {
            INFO(v.name << " " << name(type));
            cpu::GemmKernels vectors = cpu::gemm_portable;
            vectors.nr = 32;  // the width of tiles
            const cpu::AttentionProducts products(vectors, v.kernels->tiles, type);
            Matrix a(m, k, type), b(k, n, type);
            a.fill(uniform), b.fill(uniform);
            std::vector<float> weights(k * 32);
            for (float& w : weights) w = uniform();
            cpu::Buffer a_buffer, b_buffer, w_buffer;
            char *const packed_a = a_buffer.get<char>(products.a_bytes(m, k)),
                        *const packed_b = b_buffer.get<char>(products.b_bytes(n, k)),
                        *const packed_w = w_buffer.get<char>(products.weights_a_bytes(k, 32));
            products.pack_a({a.data(), type, a.ld, true}, m, k, packed_a);
            products.pack_b({b.data(), type, b.ld, false}, n, k, packed_b);
            double worst = 0;
            const auto compare = [&](float got, double want) {
                worst = std::max(worst, std::fabs(got - want));
            };
            // Rows of a from 32 on times columns of b from 32 on.
            std::vector<float> t(k * 64, 1.0f);
            products.multiply(Types::inputs, products.a_from(packed_a, from_row, 0, k), k,
                              products.b_from(packed_b, 32, k), k, m - from_row, n - 32, t.data(), 64, false);
            for (std::int64_t i = from_row; i < m; ++i)
                for (std::int64_t j = 32; j < n; ++j) {
                    double want = 0;
                    for (std::int64_t p = 0; p < k; ++p) want += a.at(0, i, p) * b.at(0, p, j);
                    compare(t[std::size_t((i - from_row) * 64 + j - 32)], want);
                }
            CHECK(worst < 2e-5);
            // k-steps of a from 64 on times weights, added to 1.
            worst = 0;
            std::fill(t.begin(), t.end(), 1.0f);
            products.multiply(Types::inputs_weights, products.a_from(packed_a, 0, from_step, k), k,
                              products.weights_b(weights.data(), k - from_step, 30), k - from_step, m, 30,
                              t.data(), 32, true);
            for (std::int64_t i = 0; i < m; ++i)
                for (std::int64_t j = 0; j < 30; ++j) {
                    double want = 1;
                    for (std::int64_t p = from_step; p < k; ++p)
                        want += a.at(0, i, p) * weights[std::size_t((p - from_step) * 32 + j)];
                    compare(t[std::size_t(i * 32 + j)], want);
                }
            CHECK(worst < 2e-4);  // 16 bits of each weight
            CHECK(worst > 1e-7);
            // Weights, whose first 32 rows count as 0, times rows of b.
            worst = 0;
            products.pack_weights_a(weights.data(), k, 32, 0, 32, 32, packed_w);
            products.pack_b({b.data(), type, b.ld, false}, n, 32, packed_b);
            products.multiply(Types::weights_inputs, packed_w, 32, packed_b, 32, k, n, t.data(), 64, false);
            for (std::int64_t i = 0; i < m; ++i)
                for (std::int64_t j = 0; j < n; ++j) {
                    double want = 0;
                    for (std::int64_t p = 0; p < 32 && i >= 32; ++p)
                        want += double(weights[std::size_t(i * 32 + p)]) * b.at(0, p, j);
                    compare(t[std::size_t(i * 64 + j)], want);
                }
            CHECK(worst < 2e-4);
            weights[5] = std::numeric_limits<float>::infinity();
            CHECK_THROWS_AS(products.weights_b(weights.data(), k, 32), cpu::NoPlanes);
        }
}

TEST_CASE("tiles: few rows of a long k, whose op(B) is packed panel by panel", "[gemm][tiles]") {
    for (const Variant& v : variants()) {
        if (!v.kernels->tiles) continue;
        INFO(v.name);
        for (const Dtype type : {bfloat16, float16})
            for (const std::int64_t m : {9, 60})
                for (const std::int64_t k : {1024, 5001})
                    run({.m = m, .n = 70, .k = k, .tb = true, .a = type, .b = type, .bias = true},
                        *v.kernels);
    }
}

TEST_CASE("tiles: the same bits for any number of threads", "[gemm][tiles]") {
    std::mt19937 random(3);
    std::vector<bfloat16_t> a(300 * 700), b(700 * 500);
    for (bfloat16_t& x : a) x = bfloat16_t(float(random()) * 0x1p-31f - 1);
    for (bfloat16_t& x : b) x = bfloat16_t(float(random()) * 0x1p-31f - 1);
    for (const Variant& v : tile_variants()) {
        if (v.name == "tile model") continue;  // takes seconds
        const int before = cpu::num_threads();
        cpu::set_num_threads(1);
        const std::vector<float> want = product(a, b, 300, 500, 700, bfloat16, v);
        for (const int threads : {2, 3, 5}) {
            cpu::set_num_threads(threads);
            CHECK(product(a, b, 300, 500, 700, bfloat16, v) == want);
        }
        cpu::set_num_threads(before);
    }
}

TEST_CASE("tiles: a packed op(B) gives the same bits", "[gemm][tiles]") {
    struct Size {
        std::int64_t m, n, k;
        bool model = true;
    };
    // One part of k and C, several ranges of k, two parts of k, chains of k.
    const Size sizes[] = {{40, 70, 50},           {9, 33, 300},           {40, 600, 1300, false},
                          {49, 512, 4608, false}, {49, 500, 4200, false}, {20, 40, 8300, false}};
    const InferenceMode scope;
    for (const Variant& v : tile_variants())
        for (const Size& size : sizes) {
            if (!size.model && v.name == "tile model") continue;
            CAPTURE(v.name, size.m, size.n, size.k);
            const auto values = [](std::int64_t n, unsigned seed) {
                return test::random_values(n, seed, test::Domain::any);
            };
            const Tensor x = test::tensor_of(values(size.m * size.k, 1), {size.m, size.k}, bfloat16),
                         w = test::tensor_of(values(size.n * size.k, 2), {size.n, size.k}, bfloat16);
            const cpu::TileProduct& product = v.kernels->tiles->bf16;
            CHECK_FALSE(cpu::packed_for_tiles(w, product, 1, size.k, size.m));
            CHECK_FALSE(cpu::packed_for_tiles(w, product, 1, size.k, 5000));
            const Ref<Storage> packed = cpu::packed_for_tiles(w, product, 1, size.k, size.m);
            REQUIRE(packed);
            for (const Dtype type : {bfloat16, float32}) {
                const Tensor want = empty({size.m, size.n}, {.dtype = type}), got = empty_like(want);
                Gemm g{
                    .m = size.m, .n = size.n, .k = size.k, .trans_b = true, .a = raw(x), .a_type = bfloat16};
                g.lda = g.ldb = size.k, g.ldc = size.n, g.b_type = bfloat16, g.c_type = type;
                g.b = raw(w), g.c = want->bytes();
                cpu::gemm(g, *v.kernels);
                g.b_tiles = static_cast<const char*>(cpu::panels_of(*packed));
                g.b_tile_panel = (size.k + 31) / 32 * 2048;
                g.c = got->bytes();
                cpu::gemm(g, *v.kernels);
                CHECK(got.to(float32).to_vector<float>() == want.to(float32).to_vector<float>());
            }
        }
}

TEST_CASE("tiles: the processor's and the model's bits", "[gemm][tiles]") {
    if (cpu::best_isa() < cpu::Isa::amx || !cpu::request_tiles()) {
        WARN("no AMX here: the model stands alone");
        return;
    }
    REQUIRE(cpu::gemm_kernels(cpu::Isa::amx).tiles != nullptr);  // compiled for them
    const Variant amx{"amx", &cpu::gemm_kernels(cpu::Isa::amx)}, model{"tile model", &tile_model_kernels()};
    std::mt19937 random(11);
    for (int round = 0; round < 20; ++round) {
        const std::int64_t m = 9 + random() % 60, n = 5 + random() % 60, k = 1 + random() % 200;
        std::vector<bfloat16_t> a(std::size_t(m * k)), b(std::size_t(k * n));
        // Random bits: subnormals, infinities and NaN among them.
        for (bfloat16_t& x : a) x.bits = std::uint16_t(random());
        for (bfloat16_t& x : b) x.bits = std::uint16_t(random());
        const std::vector<float> got = product(a, b, m, n, k, bfloat16, amx),
                                 want = product(a, b, m, n, k, bfloat16, model);
        int wrong = 0;
        for (std::size_t i = 0; i < got.size(); ++i)
            wrong += std::isnan(want[i]) ? !std::isnan(got[i])
                                         : std::memcmp(&got[i], &want[i], sizeof(float)) != 0;
        CHECK(wrong == 0);
    }
}

TEST_CASE("tiles: permission holds for threads and children", "[gemm][tiles]") {
    if (cpu::has_tiles()) CHECK(cpu::best_isa() == cpu::Isa::amx);
    if (!cpu::request_tiles()) return;
    CHECK(cpu::has_tiles());
    const Variant amx{"amx", &cpu::gemm_kernels(cpu::Isa::amx)};
    const std::vector<bfloat16_t> ones(64 * 64, bfloat16_t(1.0f));
    const std::vector<float> want(64 * 64, 64.0f);
    bool same = false;
    std::thread([&] { same = product(ones, ones, 64, 64, 64, bfloat16, amx) == want; }).join();
    CHECK(same);
    const pid_t child = fork();
    if (child == 0) _exit(product(ones, ones, 64, 64, 64, bfloat16, amx) == want ? 0 : 1);
    int status = -1;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
}

TEST_CASE("gemm: kernels chosen by time give what vectors give", "[gemm][tiles]") {
    // Every class of sizes for which this processor has a choice, at its upper and lower edge.
    for (const Dtype type : {bfloat16, float16, float32})
        for (const std::int64_t m : {9, 17, 65})
            for (const std::int64_t n : {5, 17, 65})
                for (const std::int64_t k : {32, 129}) {
                    const Gemm g{.m = m, .n = n, .k = k, .a_type = type, .b_type = type};
                    run({.m = m, .n = n, .k = k, .tb = true, .a = type, .b = type, .c = type},
                        cpu::chosen_gemm_kernels(g));
                }
    for (const cpu::GemmChoice& result : cpu::gemm_choices()) {
        CHECK(result.times.find(result.chosen) != std::string::npos);
        CHECK(result.what.find("float") != std::string::npos);
    }
    cpu::force_isa(cpu::Isa::portable);
    CHECK(&cpu::chosen_gemm_kernels({.m = 64, .n = 64, .k = 64, .a_type = bfloat16, .b_type = bfloat16}) ==
          &cpu::gemm_portable);
    cpu::release_isa();
}
