// Epilogues of the library with planted errors in their arithmetic: products that meet one take another
// algorithm or mezzo's own kernel, with right results.
#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

#include "cuda/runtime/runtime.h"
#include "mezzo/mezzo.h"
#include "mezzo/models/bert.h"
#include "mezzo/models/bert_config.h"
#include "tests/emulation/tuned.h"
#include "tests/support/support.h"

namespace {

using namespace mezzo;
using cuda::lt::Epilogue;
using emulation::fake_lt;
using emulation::FakeLt;
using test::Clock;
using test::DeviceArray;
using test::gpu;
using test::Tuned;

constexpr cuda::GemmOptions everything{.autotune = true, .fuse_layers = true, .relu_masks = true};

// Without autotune.
struct Untuned : Tuned {
    Untuned() { cuda::set_gemm_options({}); }
};
// Launches of self-checks would be counted.
struct NoFlash {
    NoFlash() { set_flash_attention(false); }
    ~NoFlash() { set_flash_attention(before); }
    const FastPath before = flash_attention();
};

double gelu(double x) {
    return 0.5 * x * (1 + std::tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
}
double apply(Activation activation, double x) {
    if (activation == Activation::none) return x;
    return activation == Activation::relu ? (x < 0 ? 0 : x) : gelu(x);
}

// C [rows, 8] = activation(A [rows, k] B [k, 8] + bias). A row of A has one value in [-6, 6], B and the bias
// are ones unless a test changes them.
struct Product {
    std::int64_t rows, k;
    Dtype dtype;
    Tensor a, b, bias, c, before, mask;
    cuda::Gemm g;
    explicit Product(Dtype type, Activation activation, std::int64_t inner = 64, std::int64_t height = 40)
        : rows(height), k(inner), dtype(type) {
        std::vector<double> values(std::size_t(rows * k));
        for (std::int64_t i = 0; i < rows; ++i)
            values[std::size_t(i * k + i % k)] = double(i) / double(rows - 1) * 12 - 7;
        a = test::tensor_of(values, {rows, k}, dtype, gpu);
        b = ones({k, 8}, {.dtype = dtype, .device = gpu});
        bias = ones({8}, {.dtype = dtype, .device = gpu});
        c = zeros({rows, 8}, {.dtype = dtype, .device = gpu});
        before = zeros({rows, 8}, {.dtype = dtype, .device = gpu});
        mask = zeros({relu_mask_bytes(rows, 8)}, {.dtype = uint8, .device = gpu});
        g.m = rows, g.n = g.ldb = g.ldc = 8, g.k = g.lda = k;
        g.a_type = g.b_type = g.c_type = g.bias_type = dtype;
        g.activation = activation;
    }
    // Runs it, compares with float64, and returns the epilogue of the library.
    Epilogue run(bool with_bias = true) {
        g.a = raw(a), g.b = raw(b), g.c = raw(c);
        g.bias = with_bias ? raw(bias) : nullptr;
        cuda::gemm(g);
        const auto x = a.to_vector<double>(), y = b.to_vector<double>(), z = bias.to_vector<double>();
        std::vector<double> expected;
        for (std::size_t i = 0; i < std::size_t(rows); ++i)
            for (std::size_t j = 0; j < 8; ++j) {
                double sum = with_bias ? z[j] : 0;
                for (std::size_t l = 0; l < std::size_t(k); ++l)
                    sum += x[i * std::size_t(k) + l] * y[l * 8 + j];
                expected.push_back(apply(g.activation, sum));
            }
        CHECK(test::difference(test::doubles(c), expected, test::tolerance(dtype)) == "");
        return fake_lt.last_problem.epilogue;
    }
};

// Sums of 257 or 2049, which bfloat16 or float16 has not, but has with a bias of 1.
Product odd_sums(Dtype dtype, Activation activation) {
    Product x(dtype, activation, 257, 8);
    std::vector<double> values(std::size_t(x.rows * x.k), dtype == bfloat16 ? 1 : 8);
    for (std::size_t i = 0; i < values.size(); i += std::size_t(x.k)) values[i] = 1;
    x.a = test::tensor_of(values, {x.rows, x.k}, dtype, gpu);
    return x;
}
void check_sums(const Product& x) {
    for (const double v : x.c.to_vector<double>()) REQUIRE(v == (x.dtype == bfloat16 ? 258 : 2050));
}

}  // namespace

TEST_CASE("gemm epilogue: a GELU as coarse as the GPU's tanh is not used for float32",
          "[cuda][gemm][emulation]") {
    const Clock clock;
    const Dtype dtype = GENERATE(float32, float64, float16, bfloat16);
    const bool keeps = GENERATE(false, true), with_bias = GENERATE(true, false);
    CAPTURE(name(dtype), keeps, with_bias);
    Product x(dtype, Activation::gelu_tanh);
    if (keeps) x.g.pre_activation = raw(x.before);
    const Epilogue full = keeps ? (with_bias ? Epilogue::gelu_tanh_aux_bias : Epilogue::gelu_tanh_aux)
                                : (with_bias ? Epilogue::gelu_tanh_bias : Epilogue::gelu_tanh);
    const Epilogue seen = x.run(with_bias);
    if (is_16bit(dtype))
        REQUIRE(seen == full);
    else
        REQUIRE((seen == Epilogue::bias || seen == Epilogue::none));
    fake_lt.precise_gelu = true;
    cuda::clear_gemm_plans();
    REQUIRE(x.run(with_bias) == full);
}

TEST_CASE("gemm epilogue: exact GELU never meets the library's, which is the tanh form",
          "[cuda][gemm][emulation]") {
    const Clock clock;
    for (const Dtype dtype : {float32, float16})
        for (const bool keeps : {false, true}) {
            Product x(dtype, Activation::gelu);
            if (keeps) x.g.pre_activation = raw(x.before);
            x.g.a = raw(x.a), x.g.b = raw(x.b), x.g.c = raw(x.c), x.g.bias = raw(x.bias);
            cuda::gemm(x.g);
            x.g.pre_activation = nullptr, x.g.bias = nullptr;
            x.g.saved = raw(x.before);
            cuda::gemm(x.g);
        }
    REQUIRE(fake_lt.problems.size() >= 4);
    for (const auto& p : fake_lt.problems)
        REQUIRE((p.epilogue == Epilogue::none || p.epilogue == Epilogue::bias));
}

TEST_CASE("gemm epilogue: training and inference give the same float32 numbers",
          "[cuda][linear][emulation]") {
    const Clock clock;
    const bool autotune = GENERATE(false, true), precise = GENERATE(false, true);
    if (autotune && precise) return;  // algorithms that are timed one by one may round differently
    cuda::set_gemm_options(autotune ? everything : cuda::GemmOptions{});
    fake_lt.precise_gelu = precise;
    nn::Linear layer(64, 48);
    layer.to(gpu);
    const Tensor x =
        test::tensor_of(test::random_values(50 * 64, 1, test::Domain::any), {50, 64}, float32, gpu);
    const auto y = [&] { return linear(x, layer.weight, layer.bias, LinearActivation::gelu_tanh); };
    const Tensor trained = y();
    REQUIRE(trained.requires_grad());
    const NoGrad no_grad;
    REQUIRE((test::doubles(y()) == test::doubles(trained)));
}

TEST_CASE("gemm epilogue: a bias added after rounding to 16 bit is refused", "[cuda][gemm][emulation]") {
    const Untuned untuned;
    const Dtype dtype = GENERATE(bfloat16, float16);
    const Activation activation = GENERATE(Activation::none, Activation::relu, Activation::gelu_tanh);
    const bool keeps = GENERATE(false, true);
    CAPTURE(name(dtype), int(activation), keeps);
    fake_lt.workspace = GENERATE(0, 4096);  // too little, or enough, for a kernel that only sums
    Product x = odd_sums(dtype, activation);
    if (keeps) x.g.pre_activation = raw(x.before);
    fake_lt.rounding_bias = 1;
    const Epilogue fused = x.run();
    CHECK(has_bias(fused));
    CHECK(fake_lt.last_algorithm == 1);
    check_sums(x);
    fake_lt.rounding_bias = 100;  // every algorithm: the bias is where the product adds to
    cuda::clear_gemm_plans();
    CHECK(x.run() == Epilogue::none);
    CHECK(fake_lt.last_operands.beta == 1);
    check_sums(x);
    fake_lt.no_algorithm = true;
    cuda::clear_gemm_plans();
    x.run();
    check_sums(x);
}

TEST_CASE("gemm epilogue: no bias is added after rounding, whatever its place", "[cuda][gemm][emulation]") {
    const Clock clock;
    cuda::set_gemm_options({.autotune = GENERATE(false, true)});
    fake_lt.rounding_bias = 100;
    Product x = odd_sums(GENERATE(bfloat16, float16), Activation::none);
    const Tensor longer = ones({9}, {.dtype = x.dtype, .device = gpu});
    x.bias = GENERATE(false, true) ? longer.slice(0, 1, 9) : x.bias;
    CHECK(x.run() == Epilogue::none);
    check_sums(x);
}

TEST_CASE("gemm epilogue: a wrong derivative of GELU is refused", "[cuda][gemm][emulation]") {
    const Clock clock;
    const Dtype dtype = GENERATE(float32, float16, bfloat16);
    const bool sums = GENERATE(false, true);
    Product x(dtype, Activation::gelu_tanh);
    const DeviceArray<float> bias_grad(8);
    x.before = test::tensor_of(test::random_values(40 * 8, 1, test::Domain::any), {40, 8}, dtype, gpu);
    const auto run = [&] {
        x.g.a = raw(x.a), x.g.b = raw(x.b), x.g.c = raw(x.c), x.g.saved = raw(x.before);
        if (sums) x.g.bias_grad = bias_grad.data();
        cuda::gemm(x.g);
        const Epilogue seen = fake_lt.last_problem.epilogue;
        const auto product = matmul(x.a.to(float64), x.b.to(float64)).to_vector<double>();
        const auto at = x.before.to_vector<double>();
        std::vector<double> expected;
        for (std::size_t i = 0; i < at.size(); ++i)
            expected.push_back(product[i] * (gelu(at[i] + 1e-6) - gelu(at[i] - 1e-6)) / 2e-6);
        const double relative = is_16bit(dtype) ? 4 * test::tolerance(dtype).relative : 2e-5;
        CHECK(test::difference(test::doubles(x.c), expected, {relative, 8 * relative}) == "");
        return seen;
    };
    SECTION("as coarse as the GPU's tanh") { CHECK(reads_before(run()) == is_16bit(dtype)); }
    SECTION("precise") {
        fake_lt.precise_gelu = true;
        CHECK(reads_before(run()));
    }
    SECTION("shifted") {
        fake_lt.precise_gelu = fake_lt.shifted_slope = true;
        CHECK(run() == Epilogue::none);
    }
}

TEST_CASE("gemm epilogue: relu keeps NaN, and masks count it as positive", "[cuda][gemm][emulation]") {
    const Clock clock;
    const Dtype dtype = GENERATE(float32, float16, bfloat16, float64);
    const bool with_bias = GENERATE(true, false);
    Product x(dtype, Activation::relu);
    std::vector<double> values = x.a.to_vector<double>();
    values[5 * 64] = NAN;
    x.a = test::tensor_of(values, {40, 64}, dtype, gpu);
    const Epilogue alone = with_bias ? Epilogue::relu_bias : Epilogue::relu;
    CHECK(x.run(with_bias) == alone);
    fake_lt.relu_drops_nan = true;
    cuda::clear_gemm_plans();
    CHECK((x.run(with_bias) == Epilogue::bias || !with_bias));
    CHECK(!has_activation(fake_lt.last_problem.epilogue));
    fake_lt.relu_drops_nan = false;
    const auto masked = [&] {
        x.g.mask = raw(x.mask);
        cuda::clear_gemm_plans();
        const Epilogue e = x.run(with_bias);
        const auto bits = x.mask.to_vector<std::uint8_t>();
        const std::size_t row_bytes = std::size_t(relu_mask_ld(8)) / 8;
        CHECK(bits[5 * row_bytes] == 0xff);
        return e;
    };
    CHECK(masked() == (with_bias ? Epilogue::relu_aux_bias : Epilogue::relu_aux));
    fake_lt.mask = FakeLt::Mask::nan_is_zero;
    CHECK(masked() == alone);
    fake_lt.mask = FakeLt::Mask::zero_is_positive;
    CHECK(masked() == alone);
}

TEST_CASE("gemm epilogue: checked once per algorithm, not per size", "[cuda][gemm][emulation]") {
    const Untuned untuned;
    const auto runs_of = [](Dtype dtype, Activation activation, std::int64_t k, std::int64_t rows) {
        Product x(dtype, activation, k, rows);
        const int runs = fake_lt.runs;
        x.run();
        return fake_lt.runs - runs;
    };
    CHECK(runs_of(float16, Activation::none, 64, 40) == 2);
    CHECK(runs_of(float16, Activation::none, 64, 80) == 1);
    CHECK(runs_of(float16, Activation::none, 128, 80) == 2);
    CHECK(runs_of(bfloat16, Activation::none, 64, 40) == 2);
    CHECK(runs_of(float16, Activation::relu, 64, 40) == 2);
    CHECK(runs_of(float16, Activation::gelu_tanh, 64, 40) == 3);
    CHECK(runs_of(float16, Activation::gelu_tanh, 64, 80) == 1);
    CHECK(runs_of(float32, Activation::none, 64, 40) == 1);
    CHECK(runs_of(float32, Activation::gelu_tanh, 64, 40) == 1);  // the own kernel
    CHECK(runs_of(float32, Activation::relu, 64, 40) == 2);
    CHECK(runs_of(float32, Activation::relu, 64, 48) == 1);
}

TEST_CASE("gemm epilogue: algorithms that do not take the check's size are checked at their own",
          "[cuda][gemm][emulation]") {
    const Untuned untuned;
    const auto own_size = [](const cuda::lt::Problem& p) { return p.m == 8; };
    fake_lt.executes = own_size;
    CHECK(Product(float16, Activation::gelu_tanh, 64, 128).run() == Epilogue::gelu_tanh_bias);
    CHECK(fake_lt.last_algorithm == 0);
    fake_lt.rounding_bias = 1;
    cuda::clear_gemm_plans();
    CHECK(Product(float16, Activation::relu, 64, 40).run() == Epilogue::relu_bias);
    CHECK(fake_lt.last_algorithm == 1);
    // too few values to show a GELU
    CHECK(Product(float16, Activation::gelu_tanh, 64, 40).run() == Epilogue::bias);
}

TEST_CASE("gemm epilogue: what the checks add to the first step of a BERT", "[cuda][emulation]") {
    const Untuned untuned;
    const NoFlash no_flash;
    cuda::set_gemm_options({.fuse_bias_gradients = false, .fuse_layers = false});
    manual_seed(1);
    nn::BertConfig config;
    config.vocab_size = 128, config.hidden_size = 64, config.intermediate_size = 192;
    config.num_hidden_layers = 3, config.num_attention_heads = 1;
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0;
    nn::BertForSequenceClassification model(config);
    model.to(gpu);
    const Tensor ids = full({4, 16}, 7, {.dtype = int64, .device = gpu});
    int trials = 0;
    fake_lt.on_run = [&](const cuda::lt::Operands&) {
        const auto& p = fake_lt.last_problem;
        trials += has_bias(p.epilogue) && p.m == 128 && p.n == 64;
    };
    const auto launches_of_step = [&] {
        trials = 0;
        for (const Tensor& p : model.parameters()) p.set_grad({});
        const auto before = cuda::counters().launches;
        Tensor y;
        {
            const amp::Autocast low({.device = DeviceType::cuda, .dtype = bfloat16});
            y = model(ids);
        }
        autograd::backward({sum(y)});
        return cuda::counters().launches - before;
    };
    ones({}, {.dtype = bfloat16, .device = gpu}).set_requires_grad().backward();  // the seed is written
    const auto first = launches_of_step();
    // The biases in epilogues have bfloat16 results and k = 64; layers and widths share their check.
    CHECK(trials == 1);
    const int runs = fake_lt.runs;
    const auto second = launches_of_step();
    CHECK(trials == 0);
    const int products = fake_lt.runs - runs, sums = runs - products - 1;
    CHECK(first - second == std::uint64_t(3 + 4 * sums));  // sums: where k is no multiple of 64
}
