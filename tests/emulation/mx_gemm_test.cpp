// Products of float8 codes with scales of blocks (MXFP8): by the stand-in for cuBLASLt, which reads the
// scales in tiles, and without it.
#include <catch2/catch.hpp>
#include <tuple>

#include "cuda/gemm/fallbacks.h"
#include "mezzo/mezzo.h"
#include "ops/gemm/fp8_product.h"
#include "tests/emulation/tuned.h"
#include "tests/support/folder.h"

namespace {

using namespace mezzo;
using Catch::Matchers::Contains;
using cuda::lt::Epilogue;
using emulation::fake_lt;
using test::Folder;
using test::OnDevice;
using test::Tuned;

// A product of matrices whose blocks differ by up to 2^40.
struct Blocks {
    Quantized a, b;
    Tensor bias;

    Blocks(std::int64_t m, std::int64_t n, std::int64_t k, Dtype a_type = float8_e4m3fn,
           Dtype b_type = float8_e4m3fn)
        : a(made(m, k, a_type)), b(made(n, k, b_type)), bias(randn({n}).to(bfloat16)) {}
    static Quantized made(std::int64_t rows, std::int64_t columns, Dtype dtype) {
        manual_seed(std::uint64_t(rows + columns));
        const Tensor x =
            randn({rows, columns / 32, 32}) * exp2(round(rand({rows, columns / 32, 1}) * 40 - 20));
        return quantize(x.reshape({rows, columns}).to(bfloat16).to(Device{DeviceType::cuda}),
                        {.dtype = dtype, .granularity = Granularity::block32});
    }
    // The largest error of the device's product, relative to the largest number of the result's row.
    double error(Dtype dtype, Activation activation = Activation::none, bool biased = false) const {
        const auto wide = [](const Quantized& q) { return dequantize(q).to(cpu_device).to(float64); };
        Tensor z = matmul(wide(a), wide(b).t());
        if (biased) z = z + bias.to(float64);
        const Tensor y = activation == Activation::none   ? z
                         : activation == Activation::relu ? relu(z)
                         : activation == Activation::gelu ? gelu(z)
                                                          : gelu_tanh(z);
        const Tensor got = product(a, b, biased ? bias.to(a.codes.device()) : Tensor(),
                                   {.dtype = dtype, .activation = activation})
                               .y;
        const Tensor difference = abs(got.to(cpu_device).to(float64) - y);
        return max(difference / max(abs(z), -1, keep_dims())).item<double>();
    }
};

}  // namespace

// More than one tile of 128 rows and 4 blocks, and a part of one.
TEST_CASE("mx products: the library multiplies codes with scales of blocks", "[cuda][gemm][emulation]") {
    const auto before = cuda::gemm_fallbacks();
    for (const auto& [a_type, b_type] :
         {std::pair(float8_e4m3fn, float8_e4m3fn), std::pair(float8_e4m3fn, float8_e5m2),
          std::pair(float8_e5m2, float8_e4m3fn)})
        for (const Shape& size : {Shape{16, 16, 32}, Shape{160, 144, 288}}) {
            CAPTURE(name(a_type), name(b_type), size);
            const OnDevice fresh(100);
            const Blocks x(size[0], size[1], size[2], a_type, b_type);
            CHECK(x.error(float32) < 1e-6);
            CHECK(fake_lt.last_problem.scales == Granularity::block32);
            CHECK(x.error(bfloat16) <= 0x1p-8);
            CHECK(fake_lt.last_problem.scales == Granularity::block32);
        }
    CHECK(cuda::gemm_fallbacks().products == before.products);
    CHECK(cuda::gemm_fallbacks().invalid == before.invalid);
}

// Tiles of 4 blocks are padded: with 9 blocks the memory behind the factors counts.
TEST_CASE("mx products: the check of an algorithm does not read what its memory held before",
          "[cuda][gemm][emulation]") {
    const OnDevice fresh(100);
    const std::uint64_t before = cuda::gemm_fallbacks().products;
    for (const std::int64_t bytes : {512, 1024, 2048, 4096, 1 << 20, 1 << 24})
        static_cast<void>(full({bytes}, 255, {.dtype = uint8, .device = Device{DeviceType::cuda}}));
    const Blocks x(32, 48, 288);
    CHECK(x.error(bfloat16, Activation::relu, true) <= 0x1p-7);
    CHECK(fake_lt.last_problem.scales == Granularity::block32);
    CHECK(fake_lt.last_problem.epilogue == Epilogue::relu_bias);
    CHECK(cuda::gemm_fallbacks().products == before);
}

TEST_CASE("mx products: blocks have the epilogues of other scales", "[cuda][gemm][emulation]") {
    const std::pair<Activation, Epilogue> wanted[] = {{Activation::none, Epilogue::bias},
                                                      {Activation::relu, Epilogue::relu_bias},
                                                      {Activation::gelu, Epilogue::bias},
                                                      {Activation::gelu_tanh, Epilogue::gelu_tanh_bias}};
    for (const auto& [activation, epilogue] : wanted) {
        const OnDevice fresh(120);
        CAPTURE(int(activation));
        const Blocks x(32, 48, 64);
        CHECK(x.error(bfloat16, activation, true) <= 0x1p-7);
        CHECK(fake_lt.last_problem.scales == Granularity::block32);
        CHECK(fake_lt.last_problem.epilogue == epilogue);
    }
}

TEST_CASE("mx products: blocks are multiplied in float32 where the library does not take them",
          "[cuda][gemm][emulation]") {
    const std::uint64_t before = cuda::gemm_fallbacks().products;
    const auto elsewhere = [](int capability, const Blocks& x) {
        emulation::options.capability = capability;
        CHECK(x.error(float32, Activation::relu, true) < 1e-6);
        CHECK(fake_lt.last_problem.a_type == float32);
    };
    const OnDevice fresh;
    elsewhere(80, Blocks(32, 16, 64));
    elsewhere(90, Blocks(32, 16, 64));
    elsewhere(100, Blocks(32, 15, 64));
    fake_lt.version = 120800;
    elsewhere(100, Blocks(32, 16, 64));
    CHECK(cuda::gemm_fallbacks().products == before);
    // Numbers at both ends, and those that are rounded beyond the largest one.
    const Device gpu{DeviceType::cuda};
    const Quantized top = quantize(full({16, 32}, 0x1.fcp127, {.device = gpu}),
                                   {.granularity = Granularity::block32}),
                    zero = quantize(zeros({16, 32}, {.device = gpu}), {.granularity = Granularity::block32}),
                    small = quantize(full({16, 32}, 1e-38, {.device = gpu}),
                                     {.dtype = float8_e5m2, .granularity = Granularity::block32});
    CHECK(equal(product(top, zero).to(cpu_device), zeros({16, 16})));
    CHECK(max(abs(product(top, small).to(cpu_device) - 112.0)).item<float>() < 7);
}

TEST_CASE("mx products: an algorithm that reads the scales of blocks otherwise is not used",
          "[cuda][gemm][emulation]") {
    using Scale = emulation::FakeLt::Scale;
    for (const Scale scale :
         {Scale::ignored, Scale::divides, Scale::first, Scale::in_rows, Scale::tiles_down}) {
        const OnDevice fresh(100);
        fake_lt.scale = scale;
        CAPTURE(int(scale));
        const std::uint64_t before = cuda::gemm_fallbacks().products;
        const Blocks x(160, 144, 288);
        CHECK(x.error(float32) < 1e-6);
        CHECK(fake_lt.last_problem.a_type == float32);
        CHECK(cuda::gemm_fallbacks().products == before + 1);
    }
    const OnDevice fresh(100);
    fake_lt.dropping_last = 1;
    CHECK(Blocks(32, 16, 512).error(bfloat16) <= 0x1p-8);
    CHECK(fake_lt.last_algorithm == 1);
}

TEST_CASE("mx products: a timed choice for blocks is not that of other scales", "[cuda][gemm][emulation]") {
    const Tuned tuned;
    emulation::options.capability = 100;
    Tuned::times(3, 1, 2);
    const Blocks blocks(32, 16, 64);
    const Tensor x = randn({32, 64}).to(Device{DeviceType::cuda});
    (void)product(quantize(x), quantize(x.slice(0, 0, 16)));
    CHECK(blocks.error(float32) < 1e-6);
    const Folder folder;
    const std::string path = folder.write("plans", "");
    REQUIRE(cuda::save_gemm_plans(path) == 2);
    CHECK_THAT(folder.read("plans"), Contains("\"block_scales\": true"));
    cuda::clear_gemm_plans();
    cuda::set_gemm_options({});
    CHECK(cuda::load_gemm_plans(path).loaded == 2);
    CHECK(blocks.error(float32) < 1e-6);
    CHECK(fake_lt.last_algorithm == 1);
    CHECK(fake_lt.last_problem.scales == Granularity::block32);
    CHECK(cuda::save_gemm_plans(path) == 2);
}

TEST_CASE("mx products: a captured step has the bits of an eager one", "[cuda][gemm][emulation]") {
    const OnDevice fresh(100);
    const Device gpu{DeviceType::cuda};
    const Tensors batches{randn({64, 32}).to(gpu), randn({64, 32}).to(gpu) * 3.0, randn({64, 32}).to(gpu),
                          randn({64, 32}).to(gpu)};
    const auto trained = [&](bool captures) {
        manual_seed(4);
        nn::Sequential net{nn::Linear(32, 64), nn::GELU(), nn::Linear(64, 32)};
        net.to(gpu);
        optim::AdamW optimizer(net.parameters(), {.lr = 0.01});
        const auto step = [&](const Tensors& in) -> Tensors {
            Tensor loss;
            {
                const amp::Autocast scope(
                    {.dtype = bfloat16,
                     .fp8 = amp::Fp8{.granularity = Granularity::block32, .least_size = 32}});
                loss = mse_loss(net(in[0]), in[0]);
            }
            optimizer.zero_grad();
            loss.backward();
            optimizer.step();
            return {loss};
        };
        cuda::CapturedStep captured(step, {.warmup = 2});
        for (const Tensor& batch : batches) (void)(captures ? captured({batch}) : step({batch}));
        CHECK(captured.statistics().captures == captures);
        std::vector<Tensor> result;
        for (const Tensor& p : net.parameters()) result.push_back(p.detach().to(cpu_device));
        return result;
    };
    const auto eager = trained(false);
    CHECK(fake_lt.last_problem.scales == Granularity::block32);
    const auto replayed = trained(true);
    for (std::size_t i = 0; i < eager.size(); ++i) CHECK(equal(eager[i], replayed[i]));
}
