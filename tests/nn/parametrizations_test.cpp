// weight_norm() and spectral_norm(): PyTorch's values and names, modes, training, copies, errors.
#include "mezzo/parametrizations.h"

#include "tests/nn/layer_helpers.h"
#include "tests/nn/module_helpers.h"
#include "tests/reference/layers.h"

using namespace mezzo;
using Catch::Matchers::Contains;
using test::check_summary;
using test::doubles;
using test::filled;
using test::leaf;
using test::names_of;
using Names = std::vector<std::string>;

TEST_CASE("weight_norm follows PyTorch", "[parametrizations]") {
    const auto net = filled(nn::weight_norm(nn::Linear(4, 3)));
    const Tensor x = leaf({3, 4}, 0.5), y = leaf({3, 4}, 0.5), image = leaf({2, 5, 4, 3}, 0.5);
    check_summary(reference::weight_norm, net, {x}, {net(x)});
    const auto whole = filled(nn::weight_norm(nn::Linear(4, 3), -1));
    check_summary(reference::weight_norm_whole, whole, {y}, {whole(y)});
    const auto conv = filled(nn::weight_norm(nn::Conv2d(3, 2, 3), 1));
    check_summary(reference::weight_norm_conv, conv, {image}, {conv(image)});
    CHECK(names_of(net.state_dict()) ==
          Names{"bias", "parametrizations.weight.original0", "parametrizations.weight.original1"});
    CHECK(conv.state_dict().at("parametrizations.weight.original0").shape() == Shape{1, 3, 1, 1});
    CHECK(net.to_string() == "WeightNorm(Linear, in_features=4, out_features=3, bias=true)");
}

TEST_CASE("spectral_norm follows PyTorch", "[parametrizations]") {
    auto net = filled(nn::spectral_norm(nn::Linear(4, 3), {.n_power_iterations = 2}));
    const Tensor x = leaf({3, 4}, 0.5), image = leaf({2, 5, 4, 3}, 0.5);
    const auto buffers = [](const nn::Module& module) {
        Tensors result;
        for (const auto& [name, value] : module.named_buffers()) result.push_back(value);
        return result;
    };
    (void)net(x);
    const Tensor y = net(x);
    check_summary(reference::spectral_norm, net, {x}, {y, buffers(net)[0], buffers(net)[1]});
    auto conv = filled(nn::spectral_norm(nn::ConvTranspose2d(3, 2, 3)));
    const Tensor z = conv(image);
    check_summary(reference::spectral_norm_conv_transpose, conv, {image},
                  {z, buffers(conv)[0], buffers(conv)[1]});
    CHECK(names_of(net.state_dict()) == Names{"bias", "parametrizations.weight.original",
                                              "parametrizations.weight.0._u",
                                              "parametrizations.weight.0._v"});
    // Eval mode and the second run of a checkpoint leave the buffers alone.
    const std::vector<double> before = doubles(buffers(net)[0]);
    net.eval();
    CHECK(doubles(net(x)) == doubles(net(x)));
    CHECK(doubles(buffers(net)[0]) == before);
    CHECK(doubles(net.remove_parametrizations()(x)) == doubles(net(x)));
    net.train();
    const Tensor out = autograd::checkpoint([net](const Tensors& in) { return Tensors{net(in[0])}; }, {x})[0];
    const std::vector<double> after = doubles(buffers(net)[0]);
    CHECK(after != before);
    sum(out).backward();
    CHECK(doubles(buffers(net)[0]) == after);
    // The start is close to the largest singular value.
    manual_seed(1);
    auto fresh = nn::spectral_norm(nn::Linear(8, 8));
    fresh.eval();
    const Tensor w = fresh.weight().detach();
    Tensor v = ones({8});
    for (int i = 0; i < 200; ++i) v = normalize(matmul(matmul(w, v), w), 2, 0);
    CHECK(norm(matmul(w, v)).item<float>() == Approx(1).epsilon(0.05));
}

TEST_CASE("parametrized layers train, in a Sequential, in every precision, as copies", "[parametrizations]") {
    const Tensor x = test::waves({6, 4}, 0.3).to(float32), y = test::waves({6, 1}, 1.3).to(float32);
    for (const Device device : test::devices())
        for (const Dtype dtype : {float32, float16, bfloat16}) {
            CAPTURE(device, dtype);
            manual_seed(3);
            nn::Sequential net(nn::weight_norm(nn::Linear(4, 8)), nn::Tanh(),
                               nn::spectral_norm(nn::Linear(8, 1)));
            net.to(device);
            optim::SGD optimizer(net.parameters(), {.lr = 0.1});
            double first = 0, last = 0;
            for (int step = 0; step < 20; ++step) {
                optimizer.zero_grad();
                Tensor loss;
                {
                    const amp::Autocast scope({.dtype = dtype});
                    loss = mse_loss(net(x.to(device)).to(float32), y.to(device));
                }
                loss.backward();
                optimizer.step();
                (step == 0 ? first : last) = loss.item<double>();
            }
            CHECK(last < 0.8 * first);
            CHECK(net.parameters().size() == 5);
            nn::Sequential copy = nn::clone(net);
            net.eval(), copy.eval();
            CHECK(doubles(copy(x.to(device))) == doubles(net(x.to(device))));
            copy.to(float16);
            const Tensor half = copy(x.to(device).to(float16));
            CHECK(half.dtype() == float16);
            CHECK(all_close(half.to(float32), net(x.to(device)), 1e-2, 1e-2));
        }
}

TEST_CASE("parametrized layers: hooks and errors", "[parametrizations]") {
    auto net = nn::weight_norm(nn::Bilinear(2, 3, 1));
    int calls = 0;
    net.register_forward_hook([&](const nn::Module& module, const Tensors& in, Tensors&) {
        CHECK(&module == &net);
        CHECK(in.size() == 2);
        ++calls;
    });
    (void)net(ones({1, 2}), ones({1, 3}));
    CHECK(calls == 1);
    CHECK(all_close(net.weight(), net.remove_parametrizations().weight, 0, 0));
    CHECK_THROWS_WITH(nn::weight_norm(nn::Linear(2, 2), 2), Contains("dim 2"));
    CHECK_THROWS_WITH(nn::spectral_norm(nn::Linear(2, 2), {.dim = 2}), Contains("dim 2"));
    CHECK_THROWS_WITH(nn::spectral_norm(nn::Linear(2, 2), {.n_power_iterations = 0}), Contains("positive"));
    CHECK_THROWS_WITH(nn::spectral_norm(nn::Linear(0, 2)), Contains("empty"));
}

TEST_CASE("weight_norm of a whole convolution has a state_dict, a frozen layer stays frozen",
          "[parametrizations]") {
    const auto conv = nn::weight_norm(nn::Conv2d(3, 2, 3), -1);
    auto other = nn::weight_norm(nn::Conv2d(3, 2, 3), -1);
    CHECK(conv.state_dict().at("parametrizations.weight.original0").shape() == Shape{});
    other.load_state_dict(conv.state_dict());
    const Tensor image = leaf({2, 5, 4, 3}, 0.5).to(float32);
    CHECK(doubles(other(image)) == doubles(conv(image)));
    for (const bool trained : {true, false}) {
        nn::Linear layer(2, 2);
        layer.weight.set_requires_grad(trained);
        const auto norm = nn::weight_norm(layer);
        for (const auto& [name, p] : norm.named_parameters())
            CHECK(p.requires_grad() == (trained || name == "bias"));
        CHECK(norm.remove_parametrizations().weight.requires_grad() == trained);
        CHECK(nn::spectral_norm(layer).remove_parametrizations().weight.requires_grad() == trained);
    }
}
