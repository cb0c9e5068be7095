// The kernels of fused layers on CUDA against the CPU's, and training with them as a graph.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "mezzo/mezzo.h"
#include "tests/support/both_devices.h"

namespace {

using namespace mezzo;
using test::Both;
using test::cuda_device;

Both pair(const Tensor& host, const Tensor& cuda) {
    Both both({1}, float32, 1);
    both.host = host;
    both.cuda = cuda;
    return both;
}

// positive() is 1 for each element of y that relu's gradient treats as positive; mask_of() is the bit mask of
// them.
std::vector<double> positive(const Tensor& y) {
    std::vector<double> bits = test::doubles(y);
    for (double& v : bits) v = !(v <= 0);
    return bits;
}
Tensor mask_of(const Tensor& y) {
    const std::vector<double> bits = positive(y);
    const std::int64_t columns = y.size(1), ld = relu_mask_ld(columns);
    std::vector<std::uint8_t> bytes(std::size_t(relu_mask_bytes(y.size(0), columns)));
    for (std::int64_t i = 0; i < y.numel(); ++i) {
        const std::int64_t at = i / columns * ld + i % columns;
        if (bits[std::size_t(i)] != 0) bytes[std::size_t(at / 8)] |= std::uint8_t(1 << at % 8);
    }
    return Tensor::from(bytes, {std::int64_t(bytes.size())}).to(cuda_device);
}

}  // namespace

TEST_CASE("cuda: linear_input_grad, from values and from masks", "[cuda][linear]") {
    if (test::no_device()) return;
    for (Dtype dtype : {float32, float16, bfloat16, float64})
        for (Activation activation : {Activation::relu, Activation::gelu, Activation::gelu_tanh})
            for (const Shape& shape : {Shape{5, 8}, Shape{300, 24}, Shape{70, 131}, Shape{1, 1}, Shape{0, 8}})
                for (bool masked : {false, true})
                    for (bool sums : {false, true}) {
                        if (masked && activation != Activation::relu) continue;
                        CAPTURE(name(dtype), int(activation), shape[0], shape[1], masked, sums);
                        const Both g({shape[0], 6}, dtype, 1), weight({6, shape[1]}, dtype, 2);
                        const Both kept(shape, dtype, 3);
                        // With a mask the kernel must not read the values that the mask stands for.
                        const Tensor junk = full(shape, 1e4, {.dtype = dtype, .device = cuda_device});
                        const Both mask = pair({}, masked ? mask_of(kept.host) : Tensor());
                        const Both seen = pair(kept.host, masked ? junk : kept.cuda);
                        std::vector<test::Result> results{{shape, dtype}};
                        if (sums) results.push_back({{shape[1]}, dtype == float64 ? float64 : float32});
                        test::agree<kernels::LinearInputGrad>({g, weight, seen, mask},
                                                              {.activation = activation, .column_sums = sums},
                                                              results, double(shape[0] + 4));
                    }
}

TEST_CASE("cuda: activation_grad from masks alone", "[cuda][linear]") {
    if (test::no_device()) return;
    for (Dtype dtype : {float32, float16, bfloat16, float64})
        for (const Shape& shape : {Shape{5, 8}, Shape{300, 24}, Shape{70, 131}}) {
            CAPTURE(name(dtype), shape[0], shape[1]);
            const Both g(shape, dtype, 1), kept(shape, dtype, 2);
            const Tensor junk = full(shape, 1e4, {.dtype = dtype, .device = cuda_device});
            test::agree<kernels::ActivationGrad>(
                {g, pair(kept.host, junk), pair({}, mask_of(kept.host))}, {.activation = Activation::relu},
                {{shape, dtype}, {{shape[1]}, dtype == float64 ? float64 : float32}}, double(shape[0]));
        }
}

TEST_CASE("cuda: masks of linear with relu", "[cuda][linear]") {
    if (test::no_device()) return;
    const double nan = std::numeric_limits<double>::quiet_NaN();
    for (Dtype dtype : {float32, float16, bfloat16, float64})
        for (std::int64_t columns : {1, 8, 12, 128, 131}) {
            CAPTURE(name(dtype), columns);
            std::vector<double> weights = test::random_values(columns * 4, 2, test::Domain::any);
            if (columns > 8) weights[4] = nan;                                        // row 1 of the weight
            for (int i = 8; i < 12 && columns > 8; ++i) weights[std::size_t(i)] = 0;  // row 2
            const Both x({70, 4}, dtype, 1), weight(weights, {columns, 4}, dtype);
            const Tensor y = zeros({70, columns}, {.dtype = dtype, .device = cuda_device});
            const std::int64_t bytes = relu_mask_bytes(70, columns);
            const Tensor all = full({bytes + 32}, 77, {.dtype = uint8, .device = cuda_device});
            const Tensor mask = all.slice(0, 16, bytes + 16);
            const Tensor in[] = {x.cuda, weight.cuda}, out[] = {y, mask};
            test::cuda_kernel<kernels::Linear>(in, {.activation = Activation::relu}, out);
            CHECK(test::doubles(mask) == test::doubles(mask_of(y)));
            for (std::int64_t i = 0; i < 16; ++i) {
                CHECK(test::doubles(all)[std::size_t(i)] == 77);
                CHECK(test::doubles(all)[std::size_t(bytes + 16 + i)] == 77);
            }
            const std::vector<double> bits = positive(y);
            CHECK(std::count(bits.begin(), bits.end(), 0.0) > 0);
            CHECK(std::isnan(test::doubles(y)[1 % std::size_t(columns)]) == (columns > 8));
        }
}

TEST_CASE("cuda: training with fused layers, eager and captured", "[cuda][linear]") {
    if (test::no_device()) return;
    const auto activation = GENERATE(LinearActivation::relu, LinearActivation::gelu_tanh);
    const auto train = [&](const cuda::GemmOptions& options, bool captured) {
        cuda::set_gemm_options(options);
        manual_seed(3);
        nn::Sequential net;
        for (int i = 0; i < 3; ++i) {
            net.push_back(nn::Linear(16, 16));
            if (activation == LinearActivation::relu)
                net.push_back(nn::ReLU());
            else
                net.push_back(nn::GELU({.approximate_tanh = true}));
        }
        net.to(cuda_device);
        optim::AdamW optimizer(net.parameters(), {.lr = 0.02});
        amp::GradScaler scaler;
        const auto step = [&](const Tensors& in) {
            Tensor loss;
            {
                const amp::Autocast low({.device = DeviceType::cuda, .dtype = float16});
                loss = mse_loss(net(in[0]), in[1]);
            }
            scaler.scale(loss).backward();
            scaler.step(optimizer);
            scaler.update();
            optimizer.zero_grad();
            return Tensors{loss};
        };
        cuda::CapturedStep graph(step);
        std::vector<std::vector<double>> seen;
        for (std::uint64_t i = 0; i < 7; ++i) {
            const Tensors in{Both({8, 16}, float32, i).cuda, Both({8, 16}, float32, i + 100).cuda};
            seen.push_back(test::doubles((captured ? graph(in) : step(in))[0]));
        }
        for (const Tensor& p : net.parameters()) seen.push_back(test::doubles(p));
        cuda::set_gemm_options({});
        return seen;
    };
    const auto apart = train({.fuse_bias_gradients = true}, false);
    const cuda::GemmOptions layers{.fuse_layers = true}, masks{.fuse_layers = true, .relu_masks = true};
    CHECK(train(layers, false) == apart);
    CHECK(train(layers, true) == apart);
    CHECK(train(masks, false) == apart);
    CHECK(train(masks, true) == apart);
}
