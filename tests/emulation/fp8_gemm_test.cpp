// Products of float8 codes: which ones the stand-in for cuBLASLt takes, their scales and epilogues, and what
// try_gemm() does without them.
#include <catch2/catch.hpp>
#include <cmath>
#include <tuple>

#include "cuda/gemm/fallbacks.h"
#include "mezzo/autocast.h"
#include "mezzo/error.h"
#include "mezzo/ops.h"
#include "tests/emulation/cublaslt/cublasLt.h"
#include "tests/emulation/tuned.h"
#include "tests/support/folder.h"

namespace {

using namespace mezzo;
using Catch::Matchers::Contains;
using cuda::lt::Epilogue;
using emulation::fake_lt;
using test::DeviceArray;
using test::Folder;
using test::OnDevice;
using test::Tuned;

// A product of 32 x 16 x 48 in float8 as a caller of the library describes it.
struct Call {
    cudaDataType_t a = CUDA_R_8F_E4M3, b = CUDA_R_8F_E4M3, d = CUDA_R_16BF;
    cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
    std::int32_t trans_a = CUBLAS_OP_T, trans_b = CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    std::int64_t m = 32, n = 16, k = 48, pad = 0;
    std::int32_t a_mode = 0, b_mode = 0, batch = 1;
    std::uint32_t alignment = 256;
    bool scales = true;

    cublasStatus_t ask() const {
        static const DeviceArray<float> vectors(4096);
        cublasLtMatmulDescOpaque_t op{};
        cublasLtMatmulDescInit_internal(&op, sizeof op, compute, CUDA_R_32F);
        const auto set = [&](int name, auto value) {
            return cublasLtMatmulDescSetAttribute(&op, cublasLtMatmulDescAttributes_t(name), &value,
                                                  sizeof value);
        };
        set(CUBLASLT_MATMUL_DESC_TRANSA, trans_a), set(CUBLASLT_MATMUL_DESC_TRANSB, trans_b);
        set(CUBLASLT_MATMUL_DESC_EPILOGUE, std::uint32_t(epilogue));
        const void* const vector = vectors.data();
        set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, vector);
        set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, vector);
        set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, std::int64_t(32));
        if (scales) set(17, vector), set(18, vector);
        for (const auto& [name, mode] : {std::pair(31, a_mode), std::pair(32, b_mode)})
            if (const auto status = mode != 0 ? set(name, mode) : CUBLAS_STATUS_SUCCESS) return status;
        cublasLtMatrixLayoutOpaque_t layouts[3];
        const auto layout = [&](int i, cudaDataType_t type, std::int64_t rows, std::int64_t columns) {
            cublasLtMatrixLayoutInit_internal(&layouts[i], sizeof layouts[i], type, std::uint64_t(rows),
                                              std::uint64_t(columns), rows + pad);
            cublasLtMatrixLayoutSetAttribute(&layouts[i], CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, 4);
        };
        layout(0, a, trans_a == CUBLAS_OP_T ? k : m, trans_a == CUBLAS_OP_T ? m : k);
        layout(1, b, trans_b == CUBLAS_OP_T ? n : k, trans_b == CUBLAS_OP_T ? k : n);
        layout(2, d, m, n);
        cublasLtMatmulPreferenceOpaque_t preference{};
        cublasLtMatmulPreferenceInit_internal(&preference, sizeof preference);
        const std::uint64_t most = 32 << 20;
        cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most, 8);
        cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                                             &alignment, 4);
        cublasLtMatmulHeuristicResult_t result{};
        int found = 0;
        return cublasLtMatmulAlgoGetHeuristic(nullptr, &op, &layouts[0], &layouts[1], &layouts[2],
                                              &layouts[2], &preference, 1, &result, &found);
    }
};

// C [32, 16] = A [32, k] B^T, of codes that float8 holds exactly, with factors and a bias.
template <class A, class B> struct Fp8Product {
    static constexpr std::int64_t m = 32, n = 16, k = 64;
    DeviceArray<A> a{test::numbers<A>(m * k, 0)};
    DeviceArray<B> b{test::numbers<B>(n * k, 7)};
    std::vector<float> a_factors, b_factors;
    DeviceArray<float> a_scale, b_scale, bias32{test::numbers(n, 3)}, c32{m * n}, before32{m * n};
    DeviceArray<bfloat16_t> bias16{test::numbers<bfloat16_t>(n, 3)}, c16{m * n}, before16{m * n};
    cuda::Gemm g;

    explicit Fp8Product(bool by_row, Dtype c_type = float32)
        : a_factors(factors(by_row ? m : 1, 1)),
          b_factors(factors(by_row ? n : 1, 2)),
          a_scale(a_factors),
          b_scale(b_factors) {
        g.m = m, g.n = g.ldc = n, g.k = g.lda = g.ldb = k;
        g.trans_b = true;
        g.a = a.data(), g.b = b.data();
        g.a_type = dtype_of<A>(), g.b_type = dtype_of<B>(), g.c_type = c_type;
        g.c = c_type == float32 ? static_cast<void*>(c32.data()) : c16.data();
        g.a_scale = a_scale.data(), g.b_scale = b_scale.data();
        g.scales = by_row ? Granularity::row : Granularity::tensor;
    }
    void add_layer(Activation activation, bool keeps) {
        const bool wide = g.c_type == float32;
        g.activation = activation;
        g.bias = wide ? static_cast<const void*>(bias32.data()) : bias16.data();
        g.bias_type = g.c_type;
        if (keeps) g.pre_activation = wide ? static_cast<void*>(before32.data()) : before16.data();
    }
    static std::vector<float> factors(std::int64_t count, int seed) {
        std::vector<float> values;
        for (std::int64_t i = 0; i < count; ++i)
            values.push_back(std::ldexp(1.0f, int(i * 3 + seed) % 5 - 2));
        return values;
    }
    double before(std::int64_t i, std::int64_t j) const {
        double sum = 0;
        for (std::int64_t l = 0; l < k; ++l)
            sum += double(test::number(i * k + l)) * test::number(7 + j * k + l);
        const bool rows = g.scales == Granularity::row;
        sum *= double(a_factors[rows ? std::size_t(i) : 0]) * b_factors[rows ? std::size_t(j) : 0];
        return sum + (g.bias != nullptr ? test::number(3 + j) : 0);
    }
    // The largest error of C, and of the value before the activation if that is stored.
    double error() const {
        const auto wide = c32.host(), wide_before = before32.host();
        const auto low = c16.host(), low_before = before16.host();
        double largest = 0;
        for (std::int64_t i = 0; i < m; ++i)
            for (std::int64_t j = 0; j < n; ++j) {
                const auto at = std::size_t(i * n + j);
                const double x = before(i, j);
                double y = x;
                if (g.activation == Activation::relu) y = std::max(x, 0.0);
                if (g.activation == Activation::gelu) y = 0.5 * x * (1 + std::erf(x * std::sqrt(0.5)));
                if (g.activation == Activation::gelu_tanh)
                    y = 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
                const bool is_wide = g.c_type == float32;
                const double c = is_wide ? wide[at] : float(low[at]);
                largest = std::max(largest, std::fabs(c - y) / (1 + std::fabs(y)));
                if (g.pre_activation == nullptr) continue;
                const double z = is_wide ? wide_before[at] : float(low_before[at]);
                largest = std::max(largest, std::fabs(z - x) / (1 + std::fabs(x)));
            }
        return largest;
    }
};

using E4M3 = Fp8Product<float8_e4m3fn_t, float8_e4m3fn_t>;

}  // namespace

TEST_CASE("fp8 products: the stand-in takes the documented types", "[cuda][gemm][emulation]") {
    const OnDevice fresh;
    const auto yes = CUBLAS_STATUS_SUCCESS, no = CUBLAS_STATUS_NOT_SUPPORTED;
    for (const auto d : {CUDA_R_16F, CUDA_R_16BF, CUDA_R_32F}) {
        CHECK(Call{.d = d}.ask() == yes);
        CHECK(Call{.a = CUDA_R_8F_E5M2, .d = d}.ask() == yes);
        CHECK(Call{.b = CUDA_R_8F_E5M2, .d = d}.ask() == yes);
        CHECK(Call{.a = CUDA_R_8F_E5M2, .b = CUDA_R_8F_E5M2, .d = d}.ask() == no);
        CHECK(Call{.b = CUDA_R_16BF, .d = d}.ask() == no);
    }
    CHECK(Call{.d = CUDA_R_64F}.ask() == no);
    CHECK(Call{.compute = CUBLAS_COMPUTE_32F_FAST_TF32}.ask() == no);
    for (const auto epilogue : {CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_RELU, CUBLASLT_EPILOGUE_RELU_BIAS,
                                CUBLASLT_EPILOGUE_GELU, CUBLASLT_EPILOGUE_GELU_BIAS})
        CHECK(Call{.epilogue = epilogue}.ask() == yes);
    for (const auto epilogue :
         {CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_DGELU, CUBLASLT_EPILOGUE_BGRADB})
        CHECK(Call{.epilogue = epilogue}.ask() == no);
    CHECK(Call{.d = CUDA_R_32F, .epilogue = CUBLASLT_EPILOGUE_BIAS}.ask() == no);  // its bias is bfloat16
}

TEST_CASE("fp8 products: the stand-in takes the documented layouts, sizes and scales",
          "[cuda][gemm][emulation]") {
    const OnDevice fresh;
    const auto yes = CUBLAS_STATUS_SUCCESS, no = CUBLAS_STATUS_NOT_SUPPORTED,
               invalid = CUBLAS_STATUS_INVALID_VALUE;
    const Call others[] = {{.trans_a = CUBLAS_OP_N}, {.trans_b = CUBLAS_OP_T}};
    for (const Call& call : others) CHECK(call.ask() == no);
    CHECK(Call{.m = 24}.ask() == no);
    CHECK(Call{.n = 8}.ask() == no);
    CHECK(Call{.k = 40}.ask() == no);
    CHECK(Call{.pad = 8}.ask() == no);
    CHECK(Call{.pad = 16}.ask() == yes);
    CHECK(Call{.batch = 2}.ask() == no);
    CHECK(Call{.alignment = 8}.ask() == no);
    CHECK(Call{.scales = false}.ask() == yes);
    CHECK(Call{.a_mode = 3, .b_mode = 3}.ask() == yes);
    CHECK(Call{.a_mode = 3}.ask() == no);
    CHECK(Call{.a_mode = 2, .b_mode = 2}.ask() == no);
    CHECK(Call{.a = CUDA_R_16BF, .b = CUDA_R_16BF}.ask() == invalid);
    CHECK(Call{.a = CUDA_R_16BF, .b = CUDA_R_16BF, .scales = false}.ask() == yes);
    for (const int capability : {80, 86}) {
        emulation::options.capability = capability;
        CHECK(Call{}.ask() == no);
    }
    for (const int capability : {89, 120}) {
        emulation::options.capability = capability;
        CHECK(Call{}.ask() == yes);
        CHECK(Call{.trans_a = CUBLAS_OP_N}.ask() == no);
        CHECK(Call{.a_mode = 3, .b_mode = 3}.ask() == no);
    }
    emulation::options.capability = 100;
    CHECK(Call{.trans_a = CUBLAS_OP_N}.ask() == yes);
    fake_lt.version = 120800;
    CHECK(Call{.a_mode = 3, .b_mode = 3}.ask() == invalid);
}

TEST_CASE("fp8 products: the stand-in takes scales of blocks as documented", "[cuda][gemm][emulation]") {
    const OnDevice fresh(100);
    const auto yes = CUBLAS_STATUS_SUCCESS, no = CUBLAS_STATUS_NOT_SUPPORTED,
               invalid = CUBLAS_STATUS_INVALID_VALUE;
    const auto blocks = [](Call call) {
        call.a_mode = call.b_mode = 2;
        if (call.k == 48) call.k = 64;
        return call.ask();
    };
    for (const int capability : {89, 90}) {
        emulation::options.capability = capability;
        CHECK(blocks({}) == no);
    }
    for (const int capability : {100, 103, 120}) {
        emulation::options.capability = capability;
        CHECK(blocks({}) == yes);
        CHECK(blocks({.a = CUDA_R_8F_E5M2, .d = CUDA_R_32F}) == yes);
        CHECK(blocks({.b = CUDA_R_8F_E5M2, .epilogue = CUBLASLT_EPILOGUE_GELU_BIAS}) == yes);
        CHECK(blocks({.a = CUDA_R_8F_E5M2, .b = CUDA_R_8F_E5M2}) == no);
        CHECK(blocks({.k = 80}) == no);
        CHECK(blocks({.scales = false}) == invalid);
        CHECK(blocks({.alignment = 8}) == no);
        CHECK(Call{.k = 64, .a_mode = 2}.ask() == no);
        CHECK(Call{.k = 64, .a_mode = 2, .b_mode = 3}.ask() == no);
    }
    fake_lt.version = 120800;
    CHECK(blocks({}) == invalid);
}

TEMPLATE_TEST_CASE("fp8 products: the library multiplies all types it takes", "[cuda][gemm][emulation]",
                   (std::tuple<float8_e4m3fn_t, float8_e4m3fn_t>),
                   (std::tuple<float8_e4m3fn_t, float8_e5m2_t>),
                   (std::tuple<float8_e5m2_t, float8_e4m3fn_t>)) {
    const OnDevice fresh;
    const auto before = cuda::gemm_fallbacks();
    for (const bool by_row : {false, true})
        for (const Dtype c : {float32, bfloat16}) {
            CAPTURE(by_row, name(c));
            const Fp8Product<std::tuple_element_t<0, TestType>, std::tuple_element_t<1, TestType>> x(by_row,
                                                                                                     c);
            REQUIRE(cuda::try_gemm(x.g));
            CHECK(x.error() <= (c == float32 ? 0 : 0x1p-8));
            CHECK((fake_lt.last_problem.scales == Granularity::row) == by_row);
        }
    CHECK(cuda::gemm_fallbacks().products == before.products);
    CHECK(cuda::gemm_fallbacks().invalid == before.invalid);
}

TEST_CASE("fp8 products: bias and activation are in the library's epilogue where it has them",
          "[cuda][gemm][emulation]") {
    const OnDevice fresh;
    const std::pair<Activation, Epilogue> wanted[] = {{Activation::none, Epilogue::bias},
                                                      {Activation::relu, Epilogue::relu_bias},
                                                      {Activation::gelu, Epilogue::bias},
                                                      {Activation::gelu_tanh, Epilogue::gelu_tanh_bias}};
    for (const auto& [activation, epilogue] : wanted)
        for (const Dtype c : {float32, bfloat16})
            for (const bool keeps : {false, true}) {
                CAPTURE(int(activation), name(c), keeps);
                E4M3 x(false, c);
                x.add_layer(activation, keeps);
                REQUIRE(cuda::try_gemm(x.g));
                CHECK(x.error() <= (c == float32 ? 2e-7 : 0x1p-7));
                const Epilogue expected = c == float32 ? Epilogue::none : keeps ? Epilogue::bias : epilogue;
                CHECK(fake_lt.last_problem.epilogue == expected);
            }
}

TEST_CASE("fp8 products: an algorithm that reads the scales otherwise is not used",
          "[cuda][gemm][emulation]") {
    using Scale = emulation::FakeLt::Scale;
    for (const Scale scale : {Scale::ignored, Scale::divides, Scale::first}) {
        const OnDevice fresh;
        fake_lt.scale = scale;
        const std::uint64_t before = cuda::gemm_fallbacks().products;
        const E4M3 by_row(true);
        CHECK_FALSE(cuda::try_gemm(by_row.g));
        CHECK(cuda::gemm_fallbacks().products == before + 1);
        CHECK_THAT(cuda::gemm_fallbacks().last, Contains("float8_e4m3fn x float8_e4m3fn"));
        CHECK(cuda::try_gemm(E4M3(false).g) == (scale == Scale::first));
    }
}

TEST_CASE("fp8 products: an epilogue that multiplies the bias by the scales is not used",
          "[cuda][gemm][emulation]") {
    for (const bool by_row : {false, true})
        for (const Activation activation : {Activation::none, Activation::relu, Activation::gelu_tanh}) {
            const OnDevice fresh;
            fake_lt.scale = emulation::FakeLt::Scale::after_bias;
            CAPTURE(by_row, int(activation));
            E4M3 x(by_row, bfloat16);
            x.add_layer(activation, false);
            REQUIRE(cuda::try_gemm(x.g));
            CHECK_FALSE(cuda::lt::has_bias(fake_lt.last_problem.epilogue));
            CHECK(x.error() <= 0x1p-7);
        }
}

TEST_CASE("fp8 products: algorithms that drop terms or round before the bias are left out",
          "[cuda][gemm][emulation]") {
    const OnDevice fresh;
    fake_lt.dropping_last = 1;
    fake_lt.rounding_bias = 2;
    E4M3 x(false, bfloat16);
    x.add_layer(Activation::relu, false);
    REQUIRE(cuda::try_gemm(x.g));
    CHECK(fake_lt.last_algorithm == 2);
    CHECK(x.error() <= 0x1p-8);
}

TEST_CASE("fp8 products: what the library does not take is no fallback", "[cuda][gemm][emulation]") {
    const OnDevice fresh(86);
    const std::uint64_t before = cuda::gemm_fallbacks().products;
    const auto taken = [](const auto& change) {
        E4M3 x(false);
        change(x.g);
        return cuda::try_gemm(x.g);
    };
    CHECK_FALSE(cuda::try_gemm(E4M3(false).g));
    emulation::options.capability = 89;
    CHECK(cuda::try_gemm(E4M3(false).g));
    CHECK_FALSE(cuda::try_gemm(E4M3(true).g));
    CHECK_FALSE(taken([](cuda::Gemm& g) { g.k -= 8; }));
    CHECK_FALSE(taken([](cuda::Gemm& g) { g.m -= 1; }));
    CHECK_FALSE(taken([](cuda::Gemm& g) { g.a = static_cast<const char*>(g.a) + 8, g.m -= 16; }));
    CHECK_FALSE(cuda::try_gemm(Fp8Product<float8_e5m2_t, float8_e5m2_t>(false).g));
    CHECK_FALSE(taken([](cuda::Gemm& g) { g.trans_b = false, g.ldb = 64; }));
    emulation::options.capability = 90;
    fake_lt.version = 120800;
    CHECK_FALSE(cuda::try_gemm(E4M3(true).g));
    CHECK(cuda::gemm_fallbacks().products == before);
}

TEST_CASE("fp8 products: a layer is the same where the library has no float8", "[cuda][emulation]") {
    const OnDevice fresh;
    const Device gpu{DeviceType::cuda};
    const auto layer = [&](int capability, Granularity granularity, LinearActivation activation) {
        emulation::options.capability = capability;
        manual_seed(3);
        const Tensor x = (randn({32, 64}) * 1e20).to(bfloat16).to(gpu).set_requires_grad(),
                     w = (randn({96, 64}) * 1e-20).to(gpu).set_requires_grad(),
                     b = randn({96}).to(bfloat16).to(gpu);
        Tensor y;
        {
            const amp::Autocast scope(
                {.dtype = bfloat16, .fp8 = amp::Fp8{.granularity = granularity, .least_size = 16}});
            y = linear(x, w, b, activation);
        }
        y.to(float32).sum().backward();
        return Tensors{y.detach(), x.grad(), w.grad()};
    };
    for (const Granularity granularity : {Granularity::tensor, Granularity::row, Granularity::block32})
        for (const LinearActivation activation : {LinearActivation::none, LinearActivation::gelu}) {
            CAPTURE(int(granularity), int(activation));
            const bool blocks = granularity == Granularity::block32;
            const int runs = fake_lt.runs;
            const Tensors plain = layer(86, granularity, activation);
            CHECK(fake_lt.last_problem.a_type == (blocks ? float32 : bfloat16));
            const Tensors library = layer(blocks ? 100 : 90, granularity, activation);
            CHECK(cuda::lt::is_float8(fake_lt.last_problem.a_type));
            CHECK(fake_lt.last_problem.scales == granularity);
            CHECK(fake_lt.runs > runs);
            for (std::size_t i = 0; i < plain.size(); ++i) {
                CAPTURE(i);
                const Tensor a = plain[i].to(float64), b = library[i].to(float64);
                CHECK((max(abs(a - b)) / max(abs(a))).item<double>() < 0x1p-7);
            }
        }
}

TEST_CASE("fp8 products: wrong calls are errors", "[cuda][gemm][emulation]") {
    const OnDevice fresh;
    E4M3 x(false);
    CHECK_THROWS_WITH(cuda::gemm(x.g), Contains("try_gemm() takes them"));
    CHECK_THROWS_WITH(cuda::try_gemm(test::Product().g),
                      Contains("try_gemm: operands are float32 and float32"));
    x.g.m = 0;
    CHECK(cuda::try_gemm(x.g));
    x.g.b_scale = nullptr;
    CHECK_THROWS_WITH(cuda::try_gemm(x.g), Contains("gemm: scales for float8_e4m3fn x float8_e4m3fn"));
    test::Product plain;
    plain.g.a_scale = plain.g.b_scale = x.a_scale.data();
    CHECK_THROWS_WITH(cuda::gemm(plain.g), Contains("gemm: scales for float32 x float32"));
}

TEST_CASE("fp8 products: timed choices are saved and loaded", "[cuda][gemm][emulation]") {
    const Tuned tuned;
    Tuned::times(3, 1, 2);
    const E4M3 one(false), rows(true);
    REQUIRE(cuda::try_gemm(one.g));
    REQUIRE(cuda::try_gemm(rows.g));
    const Folder folder;
    const std::string path = folder.write("plans", "");
    REQUIRE(cuda::save_gemm_plans(path) == 2);
    CHECK_THAT(folder.read("plans"),
               Contains("\"a\": \"float8_e4m3fn\"") && Contains("\"row_scales\": true"));
    cuda::clear_gemm_plans();
    cuda::set_gemm_options({});
    CHECK(cuda::load_gemm_plans(path).loaded == 2);
    REQUIRE(cuda::try_gemm(rows.g));
    CHECK(fake_lt.last_algorithm == 1);
    CHECK(rows.error() == 0);
    REQUIRE(cuda::try_gemm(one.g));
    CHECK(fake_lt.last_algorithm == 1);
    CHECK(cuda::save_gemm_plans(path) == 2);
}
