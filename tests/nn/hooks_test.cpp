// Module hooks: where they run, what they see and replace, removal, copies, exceptions.
#include <catch2/catch.hpp>
#include <optional>

#include "mezzo/mezzo.h"
#include "tests/support/support.h"

using namespace mezzo;
using Catch::Matchers::Contains;
using test::doubles;
using Names = std::vector<std::string>;

namespace {

// A user's class whose calls run hooks, and one whose calls do not.
struct Hooked : nn::Module {
    nn::Linear inner{2, 2};
    Tensor operator()(const Tensor& x) const {
        return with_hooks([this](const Tensor& in) { return inner(in) * 2; }, x);
    }
    MEZZO_MODULE(Hooked, inner)
};
struct Plain : nn::Module {
    Hooked inside;
    Tensor operator()(const Tensor& x) const { return inside(x) + 1; }
    MEZZO_MODULE(Plain, inside)
};

std::vector<double> with_gradient(const Tensor& y, const Tensor& x) {
    x.set_grad({});
    sum(y * y).backward();
    return doubles(x.grad());
}

}  // namespace

TEST_CASE("hooks see and replace inputs, outputs and gradients", "[hooks]") {
    nn::Linear layer(3, 2);
    const Tensor x = test::tensor_of({1, 2, 3}, {1, 3}, float32).set_requires_grad();
    const Tensor plain = layer(x * 2);
    Names order;
    layer.register_forward_pre_hook([&](const nn::Module& module, Tensors& inputs) {
        order.push_back(std::string("before ") + module.type_name());
        inputs[0] = inputs[0] * 2;
    });
    Tensors seen;
    layer.register_forward_hook([&](const nn::Module& module, const Tensors& inputs, Tensors& outputs) {
        CHECK(&module == &layer);
        CHECK(doubles(inputs[0]) == doubles(x * 2));
        order.emplace_back("after");
        seen = outputs;
        outputs[0] = outputs[0] * 10;
    });
    layer.register_forward_hook([&](const nn::Module&, const Tensors&, Tensors& outputs) {
        order.emplace_back("after that");
        CHECK(doubles(outputs[0]) == doubles(seen[0] * 10));
    });
    layer.register_full_backward_pre_hook([&](Tensors& g) {
        order.emplace_back("gradient of y");
        CHECK(doubles(g[0]) == std::vector<double>{1, 1});
        g[0] = g[0] * 3;
    });
    layer.register_full_backward_hook([&](Tensors& inputs, const Tensors& outputs) {
        order.emplace_back("gradient of x");
        CHECK(doubles(outputs[0]) == std::vector<double>{3, 3});
        CHECK(all_close(inputs[0], sum(layer.weight, {0}, {.keepdim = true}) * 30, 1e-5, 1e-5));
        inputs[0] = inputs[0] * 0 + 1;
    });
    const Tensor y = layer(x);
    CHECK(doubles(y) == doubles(plain * 10));
    sum(y).backward();
    CHECK(doubles(x.grad()) == std::vector<double>{2, 2, 2});  // the pre-hook doubled x
    CHECK(doubles(layer.bias.grad()) == std::vector<double>{30, 30});
    CHECK(order == Names{"before Linear", "after", "after that", "gradient of y", "gradient of x"});
    {
        const NoGrad no_grad;
        CHECK(doubles(layer(x)) == doubles(y));
    }
    CHECK(order.size() == 8);
}

TEST_CASE("hooks run once in Sequential, AnyModule and users' classes", "[hooks]") {
    const auto count = [](nn::Module& module, int& calls) {
        return module.register_forward_hook([&](const nn::Module&, const Tensors&, Tensors&) { ++calls; });
    };
    const Tensor x = ones({1, 2});
    int linear = 0, relu = 0, hooked = 0, inner = 0, plain = 0, all = 0;
    nn::Sequential net(nn::Linear(2, 2), nn::ReLU(), Hooked(), Plain());
    const Tensor before = net(x);
    count(net[0], linear);
    count(net[1], relu);
    count(net[2], hooked);
    count(net.at<Hooked>(2).inner, inner);
    count(net[3], plain);
    count(net, all);
    CHECK(all_close(net(x), before, 1e-5, 1e-6));
    CHECK(std::vector<int>{linear, relu, hooked, inner, plain, all} == std::vector<int>{1, 1, 1, 1, 1, 1});
    // Called on its own, a user's class runs hooks if it says with_hooks().
    net.at<Hooked>(2)(x);
    net.at<Plain>(3)(x);
    CHECK((hooked == 2 && inner == 2 && plain == 1));
    // A handle and a copy made later share the hooks of the module.
    nn::Sequential other(net.at<Hooked>(2));
    other(x);
    CHECK(hooked == 3);
    nn::clone(other)(x);
    CHECK(hooked == 3);
    int in_list = 0;
    nn::ModuleList list{Plain()};
    count(list[0].module(), in_list);
    (void)list[0](x);
    CHECK(in_list == 1);
}

TEST_CASE("hooks are removed by their handles", "[hooks]") {
    std::optional<nn::RemovableHandle> last;
    const Tensor x = ones({1, 2});
    int calls = 0;
    {
        nn::Sequential net(nn::Linear(2, 2), nn::ReLU());
        const auto once = std::make_shared<std::optional<nn::RemovableHandle>>();
        *once = net[0].register_forward_hook([&calls, once](const nn::Module&, const Tensors&, Tensors&) {
            ++calls;
            (*once)->remove();
        });
        nn::Linear copy = net.at<nn::Linear>(0);
        CHECK(net[0].has_hooks());
        (void)net(x);
        (void)net(x);
        CHECK(calls == 1);
        CHECK_FALSE(net[0].has_hooks());
        (void)copy(x);
        CHECK(calls == 1);
        last = net[1].register_forward_pre_hook([&](const nn::Module&, Tensors&) { ++calls; });
        (void)net(x);
        CHECK(calls == 2);
        last->remove();
        (void)net(x);
        CHECK(calls == 2);
    }
    last->remove();
}

TEST_CASE("hooks of modules with several inputs and outputs", "[hooks]") {
    nn::LSTM lstm(2, 3);
    const Tensor x = test::tensor_of(test::random_values(8, 1, test::Domain::any), {4, 1, 2}, float32);
    const nn::LSTMResult expected = lstm(x);
    std::size_t inputs = 0;
    lstm.register_forward_hook([&](const nn::Module&, const Tensors& in, Tensors& out) {
        inputs = in.size();
        CHECK((in[0].defined() && !in[1].defined()));
        out[1] = out[1] * 2;
    });
    const nn::LSTMResult result = lstm(x);
    CHECK(inputs == 3);
    CHECK(doubles(result.output) == doubles(expected.output));
    CHECK(doubles(result.h_n) == doubles(expected.h_n * 2));
    // A loss: the target has no history, and so no gradient.
    nn::MSELoss loss;
    const Tensor y = ones({2}).set_requires_grad(), target = zeros({2});
    int runs = 0;
    loss.register_full_backward_hook([&](Tensors& in, const Tensors& out) {
        ++runs;
        CHECK((in.size() == 2 && in[0].defined() && !in[1].defined() && out[0].dim() == 0));
        in[0] = in[0] * 2;
    });
    loss(y, target).backward();
    CHECK(doubles(y.grad()) == std::vector<double>{2, 2});
    // Without a gradient of an input the hook runs with that of the output.
    nn::Linear first(2, 1);
    first.register_full_backward_hook([&](Tensors& in, const Tensors& out) {
        ++runs;
        CHECK((in.size() == 1 && !in[0].defined() && out[0].defined()));
    });
    sum(first(target)).backward();
    CHECK(runs == 2);
    CHECK(first.weight.grad().defined());
}

TEST_CASE("hooks in second derivatives, checkpoints, Transformers and under autocast", "[hooks]") {
    const Tensor x = test::tensor_of({0.3, -0.2}, {1, 2}, float64).set_requires_grad();
    nn::Linear layer(2, 2);
    layer.to(float64);
    const auto second = [&] {
        const Tensor g = autograd::grad({sum(square(layer(x)) * layer(x))}, {x}, {.create_graph = true})[0];
        return with_gradient(g, x);
    };
    const std::vector<double> expected = second();
    layer.register_full_backward_hook([](Tensors&, const Tensors&) {});
    CHECK(test::difference(second(), expected, {1e-12, 1e-12}) == "");

    int runs = 0;
    Hooked block;
    block.register_forward_hook([&](const nn::Module&, const Tensors&, Tensors&) { ++runs; });
    block.register_full_backward_hook([&](Tensors&, const Tensors&) { ++runs; });
    const Tensor in = ones({1, 2}).set_requires_grad();
    const auto segment = [block](const Tensors& t) { return Tensors{block(t[0])}; };
    sum(autograd::checkpoint(segment, {in})[0]).backward();
    CHECK(runs == 3);

    nn::TransformerEncoderLayer encoder(4, 2, {.dim_feedforward = 6, .dropout = 0});
    const Tensor tokens = test::tensor_of(test::random_values(24, 3, test::Domain::any), {2, 3, 4}, float32);
    const Tensor before = encoder(tokens);
    Names called;
    for (const auto& [path, module] : encoder.named_modules())
        module->register_forward_hook(
            [&called, name = path](const nn::Module&, const Tensors&, Tensors&) { called.push_back(name); });
    CHECK(all_close(encoder(tokens), before, 1e-5, 1e-5));
    CHECK(called == Names{"self_attn.out_proj", "self_attn", "norm1", "linear1", "linear2", "norm2", ""});

    const amp::Autocast scope({.dtype = bfloat16});
    Dtype seen = float64;
    nn::Linear half(2, 2);
    half.register_full_backward_hook([&](Tensors& g, const Tensors& outputs) {
        seen = outputs[0].dtype();
        CHECK(g[0].dtype() == float32);
    });
    sum(half(in)).backward();
    CHECK(seen == bfloat16);
}

TEST_CASE("hooks that throw or change the number of tensors leave the module usable", "[hooks]") {
    nn::Sequential net{Plain()};
    const Tensor x = ones({1, 2}).set_requires_grad();
    const Tensor expected = net(x);
    const auto broken = net[0].register_forward_pre_hook([](const nn::Module&, Tensors&) { throw 1; });
    CHECK_THROWS_AS(net(x), int);
    broken.remove();
    const auto fewer = net[0].register_forward_hook(
        [](const nn::Module&, const Tensors&, Tensors& outputs) { outputs.clear(); });
    CHECK_THROWS_WITH(net(x), Contains("changed the number of tensors"));
    fewer.remove();
    const auto shape = net[0].register_full_backward_hook([](Tensors& g, const Tensors&) {
        g[0] = ones({3, 3});
    });
    CHECK_THROWS_WITH(sum(net(x)).backward(), Contains("module_hook") && Contains("[3, 3]"));
    shape.remove();
    CHECK(doubles(net(x)) == doubles(expected));
}

TEST_CASE("hooks run once in calls of every layer with one input", "[hooks]") {
    // The layer called directly, then in a Sequential: a forward hook and a backward hook run once each.
    const auto runs_once = [](const auto& made, const Tensor& input) {
        auto layer = made;
        CAPTURE(layer.to_string());
        int before = 0, after = 0, back = 0;
        layer.register_forward_pre_hook([&](const nn::Module&, Tensors&) { ++before; });
        layer.register_forward_hook([&](const nn::Module&, const Tensors&, Tensors&) { ++after; });
        layer.register_full_backward_hook([&](Tensors&, const Tensors&) { ++back; });
        const Tensor x = input.detach().set_requires_grad();
        sum(layer(x)).backward();
        CHECK(std::vector<int>{before, after, back} == std::vector<int>{1, 1, 1});
        nn::Sequential net(layer, nn::Identity());
        sum(net(x)).backward();
        CHECK(std::vector<int>{before, after, back} == std::vector<int>{2, 2, 2});
    };
    const auto all = [&](const Tensor& x, const auto&... layers) { (runs_once(layers, x), ...); };
    const Tensor rows = rand({4, 6}) + 0.5, signal = rand({2, 8, 4}), image = rand({2, 8, 8, 4}),
                 volume = rand({2, 4, 4, 4, 4});
    all(rows, nn::Linear(6, 2), nn::SwiGLU(6, 4), nn::LayerNorm(6), nn::RMSNorm(6), nn::Dropout(),
        nn::AlphaDropout(), nn::FeatureAlphaDropout(), nn::Flatten(), nn::Unflatten(1, {2, 3}),
        nn::Identity(), nn::ReLU(), nn::GELU(), nn::SiLU(), nn::Tanh(), nn::Sigmoid(), nn::LeakyReLU(),
        nn::ELU(), nn::CELU(), nn::Hardshrink(), nn::Softshrink(), nn::GLU(), nn::Softmax(), nn::Softmin(),
        nn::LogSoftmax(), nn::Hardtanh(), nn::Threshold(0.5, 0), nn::Softplus(), nn::PReLU(),
        nn::BatchNorm1d(6), nn::GroupNorm(2, 6), nn::Sequential(nn::Linear(6, 2), nn::ReLU()),
        nn::weight_norm(nn::Linear(6, 2)), nn::spectral_norm(nn::Linear(6, 2)), nn::RNNCell(6, 3),
        nn::GRUCell(6, 3));
    all(signal, nn::Conv1d(4, 2, 3), nn::ConvTranspose1d(4, 2, 3), nn::BatchNorm1d(4), nn::InstanceNorm1d(4),
        nn::Dropout1d(), nn::AvgPool1d({.kernel_size = 2}), nn::MaxPool1d({.kernel_size = 2}),
        nn::AdaptiveAvgPool1d(2), nn::AdaptiveMaxPool1d(2), nn::weight_norm(nn::Conv1d(4, 2, 3)),
        nn::Upsample({.scale_factor = 2}), nn::TransformerEncoderLayer(4, 2, {.dim_feedforward = 6}));
    all(image, nn::Conv2d(4, 2, 3), nn::Conv2d(4, 2, 3, {.padding = 1, .padding_mode = PadMode::reflect}),
        nn::ConvTranspose2d(4, 2, 3), nn::BatchNorm2d(4), nn::InstanceNorm2d(4), nn::Dropout2d(),
        nn::AvgPool2d({.kernel_size = 2}), nn::MaxPool2d({.kernel_size = 2}), nn::AdaptiveAvgPool2d(2),
        nn::AdaptiveMaxPool2d(2), nn::LocalResponseNorm(2), nn::Upsample({.scale_factor = 2}),
        nn::ZeroPad2d(1), nn::Pad({{.dim = 1, .before = 1, .after = 1}}), nn::PixelShuffle(2),
        nn::PixelUnshuffle(2), nn::ChannelShuffle(2), nn::Unfold({.kernel_size = 2}),
        nn::weight_norm(nn::ConvTranspose2d(4, 2, 3)));
    all(volume, nn::Conv3d(4, 2, 3), nn::ConvTranspose3d(4, 2, 3), nn::BatchNorm3d(4), nn::InstanceNorm3d(4),
        nn::Dropout3d(), nn::AvgPool3d({.kernel_size = 2}), nn::MaxPool3d({.kernel_size = 2}),
        nn::AdaptiveAvgPool3d(2), nn::AdaptiveMaxPool3d(2));
}

TEST_CASE("hooks run once in calls with an output_size or indices", "[hooks]") {
    const Tensor x = rand({2, 4, 4, 4});
    int runs = 0;
    const auto watch = [&](nn::Module& layer) {
        runs = 0;
        layer.register_forward_hook([&](const nn::Module&, const Tensors&, Tensors& outputs) {
            ++runs;
            outputs[0] = outputs[0] * 2;
        });
    };
    nn::ConvTranspose2d conv(4, 2, 3, {.stride = 2});
    nn::WeightNorm<nn::ConvTranspose2d> normed = nn::weight_norm(conv);
    const Size2d size{10, 10};
    const Tensor plain = conv(x, size);
    watch(conv);
    CHECK(doubles(conv(x, size)) == doubles(plain * 2));
    CHECK(runs == 1);
    watch(normed);
    CHECK(all_close(normed(x, size), plain * 2, 1e-5, 1e-5));
    CHECK(runs == 1);
    nn::MaxPool2d pool({.kernel_size = 2});
    nn::AdaptiveMaxPool2d adaptive(2);
    const nn::MaxUnpool2d unpool({.kernel_size = 2});
    const Pooled pooled = pool.with_indices(x);
    const Tensor back = unpool(pooled.values, pooled.indices, Size2d{5, 5});
    watch(pool);
    CHECK(doubles(pool.with_indices(x).values) == doubles(pooled.values * 2));
    CHECK(doubles(pool.with_indices(x).indices) == doubles(pooled.indices));
    CHECK(runs == 2);
    watch(adaptive);
    CHECK(doubles(adaptive.with_indices(x).values) == doubles(pooled.values * 2));
    CHECK(runs == 1);
    nn::MaxUnpool2d watched({.kernel_size = 2});
    watch(watched);
    CHECK(doubles(watched(pooled.values, pooled.indices, Size2d{5, 5})) == doubles(back * 2));
    CHECK(runs == 1);
}

namespace {

// Layers whose call is more than that of their base class.
struct Scaled : nn::Linear {
    using nn::Linear::Linear;
    Tensor operator()(const Tensor& x) const {
        return with_hooks([this](const Tensor& in) { return nn::Linear::operator()(in) * 2; }, x);
    }
    const char* type_name() const override { return "Scaled"; }
};
struct Residual : nn::Sequential {
    using nn::Sequential::Sequential;
    Tensor operator()(const Tensor& x) const {
        return with_hooks([this](const Tensor& in) { return in + nn::Sequential::operator()(in); }, x);
    }
    const char* type_name() const override { return "Residual"; }
};
// An activation of another value than its base class.
struct Shifted : nn::ReLU {
    Tensor operator()(const Tensor& x) const { return nn::ReLU::operator()(x) + 1; }
    const char* type_name() const override { return "Shifted"; }
};

}  // namespace

TEST_CASE("hooks of a class derived from a layer run once, around its own call", "[hooks]") {
    const Tensor x = test::tensor_of({1, 2}, {1, 2}, float32);
    const auto seen_by_hook = [&](auto& layer) {
        Tensors seen;
        const auto handle = layer.register_forward_hook(
            [&](const nn::Module&, const Tensors&, Tensors& outputs) { seen.push_back(outputs[0]); });
        const Tensor y = layer(x), z = nn::Sequential(layer)(x), again = layer(x);
        handle.remove();
        REQUIRE(seen.size() == 3);
        for (const Tensor& one : seen) CHECK(doubles(one) == doubles(y));
        CHECK((doubles(z) == doubles(y) && doubles(again) == doubles(y)));
    };
    Scaled scaled(2, 2);
    seen_by_hook(scaled);
    Residual residual(nn::Linear(2, 2), nn::ReLU());
    seen_by_hook(residual);
    int inner = 0;
    residual[0].register_forward_hook([&](const nn::Module&, const Tensors&, Tensors&) { ++inner; });
    (void)residual(x);
    CHECK(inner == 1);
}

TEST_CASE("Sequential calls a class derived from an activation", "[hooks]") {
    const Tensor x = test::tensor_of({1, 2}, {1, 2}, float32);
    const nn::Linear linear(2, 2);
    const nn::Sequential net(linear, Shifted());
    CHECK(doubles(net(x)) == doubles(relu(linear(x)) + 1));
}
