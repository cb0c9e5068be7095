// Float8 products on the device: codes with the bits of the CPU's, and the same step captured.
#include <catch2/catch.hpp>
#include <limits>

#include "core/tensor_impl.h"
#include "cuda/gemm/fallbacks.h"
#include "cuda/gemm/fp8.h"
#include "cuda/gemm/gemm.h"
#include "cuda/gemm/lt.h"
#include "cuda/runtime/devices.h"
#include "cuda/runtime/runtime.h"
#include "mezzo/mezzo.h"
#include "ops/gemm/fp8_product.h"
#include "tests/cpu/gemm_options_scope.h"
#include "tests/support/both_devices.h"

using namespace mezzo;
using namespace mezzo::test;

namespace {

constexpr std::int64_t size = 32;

// A training of two layers in float8 on the device.
struct Training {
    nn::Sequential net{nn::Linear(size, 2 * size), nn::GELU(), nn::Linear(2 * size, size)};
    std::vector<Tensor> batches;
    std::unique_ptr<optim::AdamW> optimizer;

    amp::Fp8 fp8;

    Training(Device device, amp::Recipe recipe) : fp8{.recipe = recipe, .least_size = 16, .history = 2} {
        manual_seed(4);
        for (const Tensor& p : net.parameters()) p.detach().normal_(0, 0.2);
        for (int i = 0; i < 6; ++i)
            batches.push_back((randn({size, size}) * (i % 2 == 0 ? 1.0 : 3.0)).to(device));
        net.to(device);
        optimizer = std::make_unique<optim::AdamW>(net.parameters(), optim::AdamWOptions{.lr = 0.01});
    }
    Tensors step(const Tensors& in) {
        Tensor loss;
        {
            const amp::Autocast scope({.dtype = bfloat16, .fp8 = fp8});
            loss = mse_loss(net(in[0]), in[0]);
        }
        optimizer->zero_grad();
        loss.backward();
        optimizer->step();
        return {loss};
    }
};

void check_same(const Quantized& device, const Quantized& host) {
    CHECK(equal(device.scale.to(cpu_device), host.scale));
    const auto codes = [](const Quantized& q) {
        return nan_to_num(q.codes.to(cpu_device).to(float32), {.nan = 1e9});
    };
    CHECK(equal(codes(device), codes(host)));
    if (device.inverse.defined()) CHECK(equal(device.inverse.to(float32).to(cpu_device), 1.0 / host.scale));
}

// Codes and scales of the device and of the CPU.
void compare(const Tensor& x, const QuantizeOptions& options) {
    CAPTURE(name(x.dtype()), x.shape(), name(options.dtype), int(options.granularity), options.exact_scale);
    check_same(quantize(x.to(cuda_device), options), quantize(x, options));
}

// y, dx, dW, db of one layer.
Tensors layer(Device device, const amp::Fp8& fp8, LinearActivation activation) {
    const auto values = [&](const Shape& shape, std::uint32_t seed) {
        return tensor_of(random_values(shape.numel(), seed, Domain::any), shape, float32).to(device);
    };
    const Tensor x = values({64, 96}, 1).to(bfloat16).set_requires_grad(),
                 w = values({32, 96}, 2).set_requires_grad(), b = values({32}, 3).set_requires_grad();
    Tensor y;
    {
        const amp::Autocast scope({.dtype = bfloat16, .fp8 = fp8});
        y = linear(x, w, b, activation);
    }
    y.backward({.gradient = values({64, 32}, 4).to(bfloat16)});
    return {y.detach(), x.grad(), w.grad(), b.grad()};
}

// True if cuBLASLt documents products of float8 codes with such scales for this device and version.
bool has_float8(Granularity granularity) {
    const int capability = cuda::compute_capability(0);
    if (granularity == Granularity::tensor) return capability >= 89;
    const bool has = granularity == Granularity::row ? capability == 90 : capability >= 100;
    return has && cuda::lt::version() >= 120900;
}

// Multiplies codes, and returns true if the library did.
bool by_library(const Quantized& a, const Quantized& b, const Tensor& bias, Activation activation) {
    const Tensor result =
        empty({a.codes.size(0), b.codes.size(0)}, {.dtype = bias.dtype(), .device = cuda_device});
    cuda::Gemm g;
    g.m = a.codes.size(0), g.n = g.ldc = b.codes.size(0);
    g.k = g.lda = g.ldb = a.codes.size(1);
    g.trans_b = true;
    g.a = raw(a.codes), g.b = raw(b.codes), g.c = raw(result), g.bias = raw(bias);
    g.a_type = a.codes.dtype(), g.b_type = b.codes.dtype();
    g.c_type = g.bias_type = bias.dtype();
    g.a_scale = raw(a.inverse), g.b_scale = raw(b.inverse);
    g.scales = has_blocks(a)          ? Granularity::block32
               : a.scale.size(0) == 1 ? Granularity::tensor
                                      : Granularity::row;
    g.activation = activation;
    if (!has_blocks(a)) return cuda::try_gemm(g);
    const auto tiled = [&](std::int64_t rows) {
        return empty({cuda::tiled_scale_bytes(rows, g.k / 32)}, {.dtype = uint8, .device = cuda_device});
    };
    const Tensor a_tiled = tiled(g.m), b_tiled = tiled(g.n);
    cuda::tile_scales({g.a_scale, raw(a_tiled), g.m, g.k / 32}, {g.b_scale, raw(b_tiled), g.n, g.k / 32});
    g.a_scale = raw(a_tiled), g.b_scale = raw(b_tiled);
    return cuda::try_gemm(g);
}

// linear() on the device against float64 on the dequantized operands, relative to the largest result.
void check_product(std::int64_t m, std::int64_t n, std::int64_t k, const amp::Fp8& fp8, double tolerance) {
    const auto values = [](std::int64_t rows, std::int64_t columns, std::uint32_t seed) {
        return tensor_of(random_values(rows * columns, seed, Domain::any), {rows, columns}, bfloat16);
    };
    const Tensor x = values(m, k, 1), w = values(n, k, 2);
    const QuantizeOptions options{.granularity = fp8.granularity, .exact_scale = fp8.exact_scale};
    const auto wide = [&](const Tensor& t) { return dequantize(quantize(t, options)).to(float64); };
    const Tensor expected = matmul(wide(x), wide(w).t());
    const amp::Autocast scope({.dtype = bfloat16, .fp8 = fp8});
    const Tensor got = linear(x.to(cuda_device), w.to(cuda_device)).to(cpu_device).to(float64);
    CHECK((max(abs(got - expected)) / max(abs(expected))).item<double>() <= tolerance);
}

}  // namespace

TEST_CASE("cuda: quantize() gives the CPU's codes and scales", "[cuda]") {
    if (no_device()) return;
    for (const Dtype dtype : {float8_e4m3fn, float8_e5m2})
        for (const Granularity granularity : {Granularity::tensor, Granularity::row, Granularity::block32})
            for (const bool exact : {false, true})
                for (const double factor : {1.0, 1e-36, 1e30}) {
                    if (exact && granularity == Granularity::block32) continue;
                    const Tensor x =
                        tensor_of(random_values(3 * 64, 5, Domain::any), {3, 64}, float32) * factor;
                    compare(x, {.dtype = dtype, .granularity = granularity, .exact_scale = exact});
                }
}

TEST_CASE("cuda: quantize() of all shapes and dtypes, and of numbers that are not finite", "[cuda]") {
    if (no_device()) return;
    for (const Dtype from : {float16, bfloat16, float32, float64})
        for (const Shape& shape :
             {Shape{}, Shape{7}, Shape{130, 72}, Shape{64, 64}, Shape{3, 5, 33}, Shape{200, 9}}) {
            Tensor x = tensor_of(random_values(shape.numel(), 5, Domain::any), shape, from);
            compare(x, {});
            compare(x, {.dtype = float8_e5m2});
            if (shape.numel() < 8) continue;
            compare(x, {.granularity = Granularity::row});
            compare(x, {.dtype = float8_e5m2, .granularity = Granularity::row});
            x = x.clone();
            x.reshape({-1}).slice(0, 3, 4).fill_(std::numeric_limits<double>::infinity());
            x.reshape({-1}).slice(0, 5, 6).fill_(std::numeric_limits<double>::quiet_NaN());
            compare(x, {});
            compare(x, {.dtype = float8_e5m2, .granularity = Granularity::row});
        }
    compare(zeros({40, 48}), {});
    compare(randn({64, 48}).t(), {.granularity = Granularity::row});
}

TEST_CASE("cuda: quantize() of every bfloat16 number", "[cuda]") {
    if (no_device()) return;
    std::vector<bfloat16_t> values;
    for (unsigned bits = 0; bits <= 0xffff; ++bits)
        values.push_back(bfloat16_t::from_bits(std::uint16_t(bits)));
    const Tensor x = Tensor::from<bfloat16_t>(values, {256, 256}, {.dtype = bfloat16});
    for (const Dtype dtype : {float8_e4m3fn, float8_e5m2})
        for (const Granularity granularity : {Granularity::tensor, Granularity::row, Granularity::block32})
            compare(x, {.dtype = dtype, .granularity = granularity});
}

TEST_CASE("cuda: a matrix and the transposed one have blocks of their own", "[cuda]") {
    if (no_device()) return;
    for (const Dtype from : {float16, bfloat16, float32, float64})
        for (const Dtype dtype : {float8_e4m3fn, float8_e5m2})
            for (const Shape& shape : {Shape{32, 32}, Shape{64, 128}, Shape{96, 160}, Shape{224, 32}}) {
                Tensor x =
                    tensor_of(random_values(shape.numel() + 1, 5, Domain::any), {shape.numel() + 1}, from);
                const auto set = [&](std::int64_t i, double value) { x.slice(0, i, i + 1).fill_(value); };
                set(3, std::numeric_limits<double>::infinity()), set(40, std::nan("")), set(77, 1e-30);
                const Tensor device = x.to(cuda_device);
                for (const std::int64_t first : {0, 1}) {  // 1: no whole 16 bytes
                    CAPTURE(name(from), name(dtype), shape, first);
                    const auto part = [&](const Tensor& t) {
                        return t.slice(0, first, first + shape.numel()).reshape(shape);
                    };
                    const QuantizeOptions options{.dtype = dtype, .granularity = Granularity::block32};
                    for (const Wanted wanted : {Wanted::matrix, Wanted::transposed, Wanted::both}) {
                        const QuantizedBoth both = quantize_both(part(device), options, wanted);
                        if (wanted != Wanted::transposed) check_same(both.matrix, quantize(part(x), options));
                        if (wanted != Wanted::matrix)
                            check_same(both.transposed, quantize(part(x).t(), options));
                    }
                }
            }
    const QuantizeOptions options{.granularity = Granularity::block32};
    const Tensor odd = randn({33, 64}).to(cuda_device);
    CHECK(quantize_both(odd, options, Wanted::matrix).matrix.scale.shape() == Shape{33, 2});
    CHECK_THROWS_WITH(quantize_both(odd, options, Wanted::both),
                      Catch::Matchers::Contains("x has shape [64, 33]"));
}

TEST_CASE("cuda: blocks of a tensor are made in one launch", "[cuda]") {
    if (no_device()) return;
    const Tensor x = randn({3, 32, 64}).to(cuda_device);
    const auto before = cuda::counters().launches;
    const Quantized q = quantize(x, {.granularity = Granularity::block32});
    CHECK(cuda::counters().launches - before == 1);
    CHECK(q.codes.shape() == x.shape());
    CHECK(q.inverse.shape() == Shape{3, 32, 2});
}

TEST_CASE("cuda: codes of a transposed matrix are those of the matrix", "[cuda]") {
    if (no_device()) return;
    for (const Dtype dtype : {float8_e4m3fn, float8_e5m2})
        for (const Shape& shape : {Shape{64, 64}, Shape{130, 72}, Shape{9, 200}, Shape{96, 16}}) {
            const Tensor x =
                tensor_of(random_values(shape.numel(), 5, Domain::any), shape, bfloat16, cuda_device);
            const Tensor expected = quantize(x, {.dtype = dtype}).codes.to(float32);
            for (const Wanted wanted : {Wanted::both, Wanted::transposed}) {
                CAPTURE(name(dtype), shape, int(wanted));
                const QuantizedBoth both = quantize_both(x, {.dtype = dtype}, wanted);
                CHECK(both.transposed.codes.is_contiguous());
                CHECK(equal(both.transposed.codes.to(float32).t(), expected));
                CHECK(both.matrix.codes.defined() == (wanted == Wanted::both));
                if (wanted == Wanted::both) CHECK(equal(both.matrix.codes.to(float32), expected));
            }
        }
}

TEST_CASE("cuda: codes with the scale of a history are the CPU's", "[cuda]") {
    if (no_device()) return;
    for (const Dtype dtype : {float8_e4m3fn, float8_e5m2})
        for (const bool finite : {true, false})
            for (const float last : {0.0f, 0.7f, 1e-30f}) {
                Tensor x = tensor_of(random_values(70 * 200, 6, Domain::any), {70, 200}, bfloat16);
                if (!finite) x[3].slice(0, 5, 6).fill_(-std::numeric_limits<float>::infinity());
                const Tensor history = full({1, 1}, last);
                const auto made = [&](Device device) {
                    return quantize_delayed(x.to(device), history.to(device), {.dtype = dtype}, 1.5);
                };
                const auto codes = [](const Quantized& q) {
                    return nan_to_num(q.codes.to(cpu_device).to(float32), {.nan = 1e9});
                };
                CAPTURE(name(dtype), finite, last);
                const Fp8Codes host = made(cpu_device), device = made(cuda_device);
                CHECK(equal(device.largest.to(cpu_device), host.largest));
                CHECK(equal(device.both.matrix.scale.to(cpu_device), host.both.matrix.scale));
                CHECK(equal(codes(device.both.matrix), codes(host.both.matrix)));
                CHECK(equal(codes(device.both.transposed), codes(host.both.transposed)));
            }
}

TEST_CASE("cuda: a float8 layer and its gradients are the CPU's", "[cuda]") {
    if (no_device()) return;
    for (const Granularity granularity : {Granularity::tensor, Granularity::row, Granularity::block32})
        for (const LinearActivation activation : {LinearActivation::none, LinearActivation::relu,
                                                  LinearActivation::gelu, LinearActivation::gelu_tanh})
            for (const amp::WeightGrad weight_grad : {amp::WeightGrad::fp8, amp::WeightGrad::low}) {
                CAPTURE(int(granularity), int(activation), int(weight_grad));
                const amp::Fp8 fp8{.granularity = granularity, .weight_grad = weight_grad, .least_size = 16};
                const Tensors host = layer(cpu_device, fp8, activation),
                              device = layer(cuda_device, fp8, activation);
                for (std::size_t i = 0; i < host.size(); ++i) {
                    CAPTURE(i);
                    const Tensor expected = host[i].to(float64), got = device[i].to(cpu_device).to(float64);
                    CHECK((max(abs(got - expected)) / max(abs(expected))).item<double>() < 0.02);
                }
            }
}

TEST_CASE("cuda: a float8 product of sizes that are no multiples of 128", "[cuda]") {
    if (no_device()) return;
    for (const std::int64_t m : {16, 48, 144})
        for (const std::int64_t n : {16, 208})
            for (const std::int64_t k : {16, 80, 272}) {
                CAPTURE(m, n, k);
                check_product(m, n, k, {.least_size = 16}, 0x1p-8);
                check_product(m, n, k,
                              {.granularity = Granularity::row, .exact_scale = true, .least_size = 16},
                              0x1p-8);
            }
    for (const std::int64_t m : {32, 160})
        for (const std::int64_t n : {32, 224})
            for (const std::int64_t k : {32, 288}) {
                CAPTURE(m, n, k);
                check_product(m, n, k, {.granularity = Granularity::block32, .least_size = 16}, 0x1p-8);
            }
}

TEST_CASE("cuda: factors of blocks are tiled, with 0 beyond the matrix", "[cuda]") {
    if (no_device()) return;
    const std::int64_t rows = 150, blocks = 6;
    std::vector<std::uint8_t> plain(std::size_t(rows * blocks)), expected(2 * 2 * 512, 0);
    for (std::int64_t row = 0; row < rows; ++row)
        for (std::int64_t block = 0; block < blocks; ++block) {
            const auto value = std::uint8_t(1 + (row * blocks + block) % 254);
            plain[std::size_t(row * blocks + block)] = value;
            const std::int64_t in_tile = row % 32 * 16 + row / 32 % 4 * 4 + block % 4;
            expected[std::size_t((row / 128 * 2 + block / 4) * 512 + in_tile)] = value;
        }
    const Tensor from = Tensor::from<std::uint8_t>(plain, {rows, blocks}).to(cuda_device);
    REQUIRE(cuda::tiled_scale_bytes(rows, blocks) == 2048);
    const Tensor a = full({2048}, 255, {.dtype = uint8}).to(cuda_device), b = a.clone();
    cuda::tile_scales({raw(from), raw(a), rows, blocks}, {raw(from), raw(b), rows, blocks});
    CHECK(a.to_vector<std::uint8_t>() == expected);
    CHECK(b.to_vector<std::uint8_t>() == expected);
}

// On a GPU this names each product that the library documents and refuses, or computes wrongly.
TEST_CASE("cuda: the library multiplies all types, scales and epilogues in float8", "[cuda]") {
    if (no_device()) return;
    const std::pair<Dtype, Dtype> dtypes[] = {
        {float8_e4m3fn, float8_e4m3fn}, {float8_e4m3fn, float8_e5m2}, {float8_e5m2, float8_e4m3fn}};
    const Tensor x = randn({48, 64}).to(cuda_device), w = randn({32, 64}).to(cuda_device),
                 bias = randn({32}).to(cuda_device);
    const auto counts = [] { return cuda::gemm_fallbacks().products + cuda::gemm_fallbacks().invalid; };
    int skipped = 0;
    for (const auto& [dtype_x, dtype_w] : dtypes)
        for (const Granularity granularity : {Granularity::tensor, Granularity::row, Granularity::block32})
            for (const Dtype result : {float32, bfloat16, float16})
                for (const Activation activation :
                     {Activation::none, Activation::relu, Activation::gelu_tanh}) {
                    CAPTURE(name(dtype_x), name(dtype_w), int(granularity), name(result), int(activation));
                    const bool expected = has_float8(granularity);
                    skipped += !expected;
                    const std::uint64_t before = counts();
                    const Quantized a = quantize(x, {.dtype = dtype_x, .granularity = granularity}),
                                    b = quantize(w, {.dtype = dtype_w, .granularity = granularity});
                    CHECK(by_library(a, b, bias.to(result), activation) == expected);
                    (void)product(a, b, bias, {.dtype = result, .activation = activation});
                    CHECK(counts() == before);
                }
    if (skipped != 0)
        WARN(skipped << " of 81 products are not in float8 on compute capability "
                     << cuda::compute_capability(0) << " with cuBLASLt " << cuda::lt::version());
}

// Above this error a weight's gradient had better be in 16 bit. A Tensor Core of compute capability 9.0 adds
// with about 14 bits, and the library adds partial sums in float32.
TEST_CASE("cuda: a float8 gradient of many rows is as accurate as 16 bit", "[cuda]") {
    if (no_device()) return;
    const auto values = [](std::uint64_t seed) {
        return tensor_of(random_values(16384 * 16, seed, Domain::any), {16384, 16}, bfloat16);
    };
    const Tensor x = values(1), dy = values(2);
    const Tensor w = zeros({16, 16}, {.device = cuda_device}).set_requires_grad();
    Tensor y;
    {
        const amp::Autocast scope({.dtype = bfloat16, .fp8 = amp::Fp8{.least_size = 16}});
        y = linear(x.to(cuda_device), w);
    }
    y.backward({.gradient = dy.to(cuda_device)});
    const Tensor wide_dy = dequantize(quantize(dy, {.dtype = float8_e5m2})).to(float64),
                 expected = matmul(wide_dy.t(), dequantize(quantize(x)).to(float64));
    const Tensor difference = w.grad().to(cpu_device).to(float64) - expected;
    CHECK((max(abs(difference)) / max(abs(expected))).item<double>() < 1e-3);
}

TEST_CASE("cuda: a step in float8 is the CPU's, and the same when it is captured", "[cuda]") {
    if (no_device()) return;
    for (const amp::Recipe recipe : {amp::Recipe::current, amp::Recipe::delayed})
        for (const int warmup : {2, 3}) {
            CAPTURE(int(recipe), warmup);
            Training host(cpu_device, recipe), eager(cuda_device, recipe), replayed(cuda_device, recipe);
            cuda::CapturedStep captured([&](const Tensors& in) { return replayed.step(in); },
                                        {.warmup = warmup});
            for (std::size_t i = 0; i < host.batches.size(); ++i) {
                CAPTURE(i);
                for (const Training* training : {&eager, &replayed}) {
                    amp::Fp8State state(training->net);  // replaces the histories: the step is recorded anew
                    if (i == 4) state.load_state_dict(state.state_dict());
                }
                const double expected = host.step({host.batches[i]})[0].item<double>();
                const double loss = eager.step({eager.batches[i]})[0].item<double>();
                CHECK(loss == Approx(expected).epsilon(0.02));
                CHECK(captured({replayed.batches[i]})[0].item<double>() == loss);
            }
            CHECK(captured.statistics().captures == 1);
            for (std::size_t i = 0; i < 4; ++i)
                CHECK(equal(eager.net.parameters()[i].detach(), replayed.net.parameters()[i].detach()));
            const StateDict history = amp::Fp8State(eager.net).state_dict(),
                            of_replayed = amp::Fp8State(replayed.net).state_dict();
            CHECK(history.size() == (recipe == amp::Recipe::delayed ? 6 : 0));
            REQUIRE(of_replayed.size() == history.size());
            for (std::size_t i = 0; i < history.size(); ++i)
                CHECK(equal(history[i].second, of_replayed[i].second));
        }
}

TEST_CASE("cuda: passes of a step share the codes of weights", "[cuda]") {
    if (no_device()) return;
    Training training(cuda_device, amp::Recipe::current);
    const auto launches = [&] {
        const auto before = cuda::counters().launches;
        {
            const amp::Autocast scope({.dtype = bfloat16, .fp8 = training.fp8});
            (void)training.net(training.batches[0]);
        }
        return cuda::counters().launches - before;
    };
    training.step({training.batches[0]}), training.step({training.batches[0]});
    const auto first = launches(), second = launches();
    CHECK(second < first);
    CHECK(launches() == second);
    training.step({training.batches[0]});
    CHECK(launches() == first);
}

TEST_CASE("cuda: a captured step makes codes of its own", "[cuda]") {
    if (no_device()) return;
    Training training(cuda_device, amp::Recipe::current);
    const Tensor x = training.batches[0];
    const auto run = [&](const Tensors& in) {
        const amp::Autocast scope({.dtype = bfloat16, .fp8 = training.fp8});
        return Tensors{training.net(in[0])};
    };
    cuda::CapturedStep captured(run, {.warmup = 2});
    for (int i = 0; i < 6; ++i) {
        CAPTURE(i);
        if (i > 3) {
            const NoGrad plain;
            for (const Tensor& p : training.net.parameters()) p.mul_(1.5);
        }
        const Tensor y = captured({x})[0].clone();
        CHECK(equal(y, run({x})[0]));
    }
    CHECK(captured.statistics().replays >= 2);
}

TEST_CASE("cuda: a fused loss sends a float8 layer the gradient of its result", "[cuda]") {
    if (no_device()) return;
    const auto gradients = [](FastPath fused) {
        const GemmOptionsScope scope({.fuse_bias_gradients = fused, .fuse_layers = fused});
        manual_seed(14);
        nn::Linear layer(size, size);
        layer.to(cuda_device);
        const Tensor x = randn({size, size}).to(cuda_device), target = randn({size, size}).to(cuda_device);
        Tensor y;
        {
            const amp::Autocast low({.dtype = bfloat16, .fp8 = amp::Fp8{.least_size = 16}});
            y = layer(x);
        }
        mse_loss(y, target).backward();
        return Tensors{layer.weight.grad(), layer.bias.grad()};
    };
    const Tensors fused = gradients(FastPath::on), apart = gradients(FastPath::off);
    for (std::size_t i = 0; i < 2; ++i) CHECK(equal(fused[i], apart[i]));
}
