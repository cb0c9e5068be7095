// Batch norms folded into the layers before them: weights, copies of layers, and whole models.
#include "mezzo/fusion.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <stdexcept>

#include "mezzo/autocast.h"
#include "mezzo/autograd.h"
#include "mezzo/error.h"
#include "mezzo/models/resnet.h"
#include "mezzo/ops.h"
#include "mezzo/parametrizations.h"
#include "tests/nn/module_helpers.h"
#include "tests/support/support.h"

using namespace mezzo;
using Catch::Matchers::Contains;

namespace {

double largest(const Tensor& x) { return max(abs(x)).item<double>(); }
// The largest difference, as a share of the largest element of `want`.
double apart(const Tensor& got, const Tensor& want) {
    return largest(got.to(float64) - want.to(float64)) / largest(want.to(float64));
}

Tensor values(const Shape& shape, std::uint64_t seed, Dtype dtype = float64) {
    return test::tensor_of(test::random_values(shape.numel(), seed, test::Domain::any), shape, dtype);
}

// Fills statistics and affine parameters with other numbers than the initial ones.
void disturb(nn::BatchNorm& norm) {
    const NoGrad plain;
    norm.running_mean.copy_(values(norm.running_mean.shape(), 1));
    norm.running_var.copy_(square(values(norm.running_var.shape(), 2)) + 0.1);
    if (norm.weight.defined()) norm.weight.copy_(values(norm.weight.shape(), 3));
    if (norm.bias.defined()) norm.bias.copy_(values(norm.bias.shape(), 4));
}
void disturb_norms(nn::Module& net) {
    for (const auto& [path, module] : net.named_modules())
        if (auto* const norm = dynamic_cast<nn::BatchNorm*>(module)) disturb(*norm);
}

// Compares a layer with the batch norm folded in with the two layers.
template <class Layer, class Norm> void require_folded(Layer layer, Norm norm, const Shape& shape) {
    disturb(norm);
    layer.eval(), norm.eval();
    const Tensor x = values(shape, 5);
    const Tensor want = norm(layer(x));
    const Layer fused = [&] {
        if constexpr (std::is_same_v<Layer, nn::Linear>)
            return nn::fuse_linear_bn_eval(layer, norm);
        else
            return nn::fuse_conv_bn_eval(layer, norm);
    }();
    CHECK(fused.bias.defined());
    CHECK(fused.describe().find("bias=false") == std::string::npos);
    CHECK(apart(fused(x), want) < 1e-12);
    CHECK(apart(norm(layer(x)), want) == 0);  // both are as before
}

constexpr Dtype wide = float64;

}  // namespace

TEST_CASE("fusion: copies of layers have the batch norm in their weights") {
    require_folded(nn::Conv1d(3, 4, 3, {.bias = false, .dtype = wide}), nn::BatchNorm1d(4, {.dtype = wide}),
                   {2, 6, 3});
    require_folded(nn::Conv2d(4, 6, {3, 2}, {.stride = 2, .groups = 2, .dtype = wide}),
                   nn::BatchNorm2d(6, {.eps = 1e-3, .dtype = wide}), {2, 5, 6, 4});
    require_folded(nn::Conv2d(3, 4, 3, {.padding = 1, .padding_mode = PadMode::reflect, .dtype = wide}),
                   nn::BatchNorm2d(4, {.affine = false, .dtype = wide}), {2, 5, 4, 3});
    require_folded(nn::Conv3d(2, 3, 2, {.dtype = wide}), nn::BatchNorm3d(3, {.bias = false, .dtype = wide}),
                   {1, 3, 4, 3, 2});
    require_folded(nn::ConvTranspose1d(4, 6, 3, {.stride = 2, .groups = 2, .dtype = wide}),
                   nn::BatchNorm1d(6, {.dtype = wide}), {2, 4, 4});
    require_folded(nn::ConvTranspose2d(3, 5, 2, {.bias = false, .dtype = wide}),
                   nn::BatchNorm2d(5, {.dtype = wide}), {2, 3, 3, 3});
    require_folded(nn::ConvTranspose3d(4, 4, 2, {.groups = 4, .dtype = wide}),
                   nn::BatchNorm3d(4, {.dtype = wide}), {1, 2, 3, 2, 4});
    require_folded(nn::Linear(3, 4, {.dtype = wide}), nn::BatchNorm1d(4, {.dtype = wide}), {5, 3});
}

// The formula in float64 here, rounded once.
TEST_CASE("fusion: 16-bit weights with float32 statistics are rounded once") {
    const Dtype dtype = GENERATE(bfloat16, float16, float32);
    const Tensor w = values({3, 2, 2, 4}, 1, dtype), mean = values({3}, 2, float32),
                 variance = square(values({3}, 3, float32)) + 0.1, gain = values({3}, 4, float32);
    const nn::FusedWeights got = nn::fuse_conv_bn_weights(w, {}, mean, variance, 1e-5, gain, {});
    std::vector<double> scale, shift;
    for (int c = 0; c < 3; ++c) {
        scale.push_back(gain[c].item<double>() / std::sqrt(variance[c].item<double>() + 1e-5));
        shift.push_back(-mean[c].item<double>() * scale.back());
    }
    const Tensor factors = Tensor::from(scale, {3, 1, 1, 1});
    CHECK(got.weight.dtype() == dtype);
    CHECK(got.bias.dtype() == dtype);
    CHECK(test::doubles(got.weight) == test::doubles((w.to(float64) * factors).to(dtype)));
    CHECK(test::doubles(got.bias) == test::doubles(Tensor::from(shift, {3}).to(dtype)));
}

TEST_CASE("fusion: gradients of fused weights are wanted as before") {
    nn::Conv2d conv(2, 3, 1);
    conv.weight.set_requires_grad(false);
    nn::BatchNorm2d norm(3);
    conv.eval(), norm.eval();
    const nn::Conv2d fused = nn::fuse_conv_bn_eval(conv, norm);
    CHECK(!fused.weight.requires_grad());
    CHECK(fused.bias.requires_grad());
}

TEST_CASE("fusion: errors") {
    nn::Conv2d conv(2, 3, 1);
    nn::BatchNorm2d norm(3), untracked(3, {.track_running_stats = false}), other(4);
    CHECK_THROWS_WITH(nn::fuse_conv_bn_eval(conv, norm),
                      Contains("fuse_conv_bn_eval: the Conv2d is in training mode"));
    conv.eval();
    CHECK_THROWS_WITH(nn::fuse_conv_bn_eval(conv, norm), Contains("the BatchNorm2d is in training mode"));
    norm.eval(), untracked.eval(), other.eval();
    CHECK_THROWS_WITH(nn::fuse_conv_bn_eval(conv, untracked), Contains("no running statistics"));
    CHECK_THROWS_WITH(nn::fuse_conv_bn_eval(conv, other), Contains("running_var [4] is not [3]"));
    CHECK_THROWS_WITH(nn::fuse_linear_bn_weights(zeros({3}), {}, zeros({3}), ones({3}), 0, {}, {}),
                      Contains("fuse_linear_bn_weights: weight [3] has fewer than two dimensions"));
    CHECK_THROWS_WITH(nn::fuse_conv_bn_weights(zeros({4, 1, 2}), {}, zeros({3}), ones({3}), 0, {}, {}, true),
                      Contains("running_mean [3] does not fit a transposed weight [4, 1, 2]"));
    CHECK_THROWS_WITH(
        nn::fuse_conv_bn_weights(zeros({3, 1, 2}), zeros({2}), zeros({3}), ones({3}), 0, {}, {}),
        Contains("bias [2] is not [3]"));
}

TEST_CASE("fusion: a ResNet computes the same without its batch norms") {
    const bool bottleneck = GENERATE(false, true);
    nn::ResNet net({.block = bottleneck ? nn::ResNetBlockKind::bottleneck : nn::ResNetBlockKind::basic,
                    .layers = {2, 1},
                    .width = 8,
                    .stem = nn::ResNetStem::cifar,
                    .num_classes = 3});
    disturb_norms(net);
    net.eval();
    const Tensor x = values({2, 6, 6, 3}, 7, float32);
    const Tensor want = net(x);
    const nn::ResNet before = net;
    // The stem; two or three per block; one shortcut, or two.
    CHECK(nn::fuse_batch_norms(net, [&] { return Tensors{net(x)}; }) == (bottleneck ? 12 : 8));
    CHECK(apart(before(x), want) == 0);
    CHECK(apart(net(x), want) < 1e-5);  // composed, with a graph
    CHECK(net.to_string().find("folded") != std::string::npos);
    for (const std::string& name : test::names_of(net.state_dict()))
        CHECK(name.find("running") == std::string::npos);
    CHECK(nn::fuse_batch_norms(net, [&] { return Tensors{net(x)}; }) == 0);
    const NoGrad plain;
    CHECK(apart(net(x), want) < 1e-5);
    const amp::Autocast scope({.dtype = bfloat16});
    CHECK(net(x).dtype() == bfloat16);
    CHECK(apart(net(x), want) < 0.05);
}

TEST_CASE("fusion: layers with hooks call them, and stay") {
    nn::Conv2d conv(2, 3, 1);
    nn::BatchNorm2d norm(3);
    disturb(norm);
    conv.eval(), norm.eval();
    nn::Sequential net(conv, norm);
    const Tensor x = values({2, 3, 3, 2}, 1, float32), want = net(x);
    int calls = 0;
    const auto hook =
        net[0].register_forward_hook([&](const nn::Module&, const Tensors&, Tensors&) { ++calls; });
    CHECK(nn::fuse_batch_norms(net, [&] { return Tensors{net(x)}; }) == 0);
    CHECK(calls == 1);
    hook.remove();
    CHECK(nn::fuse_batch_norms(net, [&] { return Tensors{net(x)}; }) == 1);
    CHECK(apart(net(x), want) < 1e-6);
    const NoGrad plain;
    const auto& fused = dynamic_cast<const nn::Conv2d&>(net[0]);
    const auto& folded = dynamic_cast<const nn::BatchNorm2d&>(net[1]);
    const auto other =
        net[0].register_forward_hook([&](const nn::Module&, const Tensors&, Tensors&) { ++calls; });
    CHECK(apart(nn::conv_bn(fused, folded, x, {.relu = true}), relu(want)) < 1e-6);
    CHECK(calls == 2);
}

namespace {

// Ways to use a convolution's result that a folded batch norm would change.
struct Odd : nn::Module {
    Tensor operator()(const Tensor& x) const {
        const Tensor a = conv(x);
        if (way == 0) return norm(a) + a;
        if (way == 1) return norm(a) + other(a);
        if (way == 2) return norm(a) + norm(conv(x));
        if (way == 3) return norm(a, {.residual = a});
        kept = a;
        return norm(a);
    }
    int way = 0;
    mutable Tensor kept;
    nn::Conv2d conv{2, 3, 1};
    nn::BatchNorm2d norm{3}, other{3};
    MEZZO_MODULE(Odd, conv, norm, other)
};

}  // namespace

TEST_CASE("fusion: a result that is used elsewhere keeps its batch norm") {
    Odd net;
    disturb_norms(net);
    net.eval();
    net.way = GENERATE(0, 1, 2, 3, 4);
    const Tensor x = values({2, 3, 3, 2}, 1, float32);
    CHECK(nn::fuse_batch_norms(net, [&] { return Tensors{net(x)}; }) == 0);
    CHECK(!net.conv.has_hooks());
}

TEST_CASE("fusion: a result that the pass returns keeps its batch norm") {
    nn::Conv2d conv(2, 3, 1);
    nn::BatchNorm2d norm(3);
    conv.eval(), norm.eval();
    nn::Sequential net(conv, norm);
    const Tensor x = values({2, 3, 3, 2}, 1, float32);
    const bool alias = GENERATE(false, true);
    const auto pass = [&] {
        const Tensor a = dynamic_cast<const nn::Conv2d&>(net[0])(x);
        const Tensor b = dynamic_cast<const nn::BatchNorm2d&>(net[1])(a);
        return Tensors{alias ? a.detach() : a, b};
    };
    CHECK(nn::fuse_batch_norms(net, pass) == 0);
}

namespace {

// A linear layer whose weight counts twice.
struct Doubled : nn::Linear {
    Doubled() : nn::Linear(2, 3) {}
    Tensor operator()(const Tensor& x) const {
        return with_hooks([this](const Tensor& in) { return linear(in, weight * 2, bias); }, x);
    }
};

}  // namespace

TEST_CASE("fusion: layers that compute with another weight than their own stay") {
    const Tensor x = values({4, 2}, 1, float32);
    const auto check = [&](auto layer) {
        nn::Sequential net(std::move(layer), nn::BatchNorm1d(3));
        disturb_norms(net);
        net.eval();
        const Tensor want = net(x);
        CHECK(nn::fuse_batch_norms(net, [&] { return Tensors{net(x)}; }) == 0);
        CHECK(apart(net(x), want) == 0);
    };
    check(nn::weight_norm(nn::Linear(2, 3)));
    check(nn::spectral_norm(nn::Linear(2, 3)));
    check(Doubled());
}

TEST_CASE("fusion: nothing is folded in training mode, or if the pass throws") {
    nn::Sequential net(nn::Linear(2, 3), nn::BatchNorm1d(3));
    const Tensor x = values({4, 2}, 1, float32);
    CHECK_THROWS_WITH(nn::fuse_batch_norms(net, [&] { return Tensors{net(x)}; }),
                      Contains("1 is in training mode"));
    net.eval();
    const Tensor want = net(x);
    CHECK_THROWS_AS(nn::fuse_batch_norms(net,
                                         [&]() -> Tensors {
                                             (void)net(x);
                                             throw std::runtime_error("stop");
                                         }),
                    std::runtime_error);
    CHECK(apart(net(x), want) == 0);
    CHECK(!net[0].has_hooks());
    CHECK(nn::fuse_batch_norms(net, [&] { return Tensors{net(x)}; }) == 1);
    CHECK(apart(net(x), want) < 1e-6);
    net.train();
    CHECK_THROWS_WITH(net(x),
                      Contains("BatchNorm1d: in training mode, but fuse_batch_norms() has folded it"));
    net.eval();
    CHECK(apart(net(x), want) < 1e-6);
}
