// The blocks of docs/start/coming_from_pytorch.md: each is a case here.
#include <catch2/catch.hpp>
#include <cmath>

#include "mezzo/mezzo.h"
#include "tests/support/folder.h"

namespace mz = mezzo;
namespace nn = mezzo::nn;

namespace {

std::vector<float> floats(const mz::Tensor& x) { return x.to_vector<float>(); }

mz::Tensor images_of_pytorch() {
    mz::manual_seed(1);
    return mz::randn({8, 3, 10, 12});
}

}  // namespace

TEST_CASE("coming from PyTorch: the same network", "[recipes]") {
    // begin
    struct SmallNet : nn::Module {
        nn::Conv2d conv1{3, 16, 3, {.padding = 1, .bias = false}};
        nn::BatchNorm2d bn1{16};
        nn::Conv2d conv2{16, 32, 3, {.stride = 2, .padding = 1}};
        nn::Linear fc{32, 10};

        mz::Tensor operator()(const mz::Tensor& x) const {  // [batch, height, width, 3]
            mz::Tensor y = mz::relu(bn1(conv1(x)));         // [batch, height, width, 16]
            y = mz::max_pool2d(y, {.kernel_size = 2});      // half as high and wide
            y = mz::relu(conv2(y));                         // and again
            return fc(mz::mean(y, {1, 2}));                 // the mean over height and width: [batch, 32]
        }
        MEZZO_MODULE(SmallNet, conv1, bn1, conv2, fc)
    };
    // end
    const mz::Tensor images = images_of_pytorch();
    const mz::Tensor labels = mz::randint(0, 10, {8});
    SmallNet net;
    net.train();
    float first = 0, last = 0;
    mz::optim::SGD optimizer(net.named_parameters(), {.lr = 0.05, .momentum = 0.9});
    mz::amp::GradScaler scaler;
    const mz::Tensor x = images.permute({0, 2, 3, 1}).contiguous();  // from [batch, 3, height, width]
    for (int step = 0; step < 20; ++step) {
        mz::Tensor loss;
        {
            mz::amp::Autocast scope({.dtype = mz::float16});
            loss = mz::cross_entropy(net(x), labels);
        }
        optimizer.zero_grad();
        scaler.scale(loss).backward();
        scaler.step(optimizer);
        scaler.update();
        last = loss.item<float>();
        if (step == 0) first = last;
    }
    CHECK(last < 0.7f * first);
    CHECK(optimizer.applied_steps() > 15);
}

TEST_CASE("coming from PyTorch: channels", "[recipes]") {
    const mz::Tensor x = images_of_pytorch().permute({0, 2, 3, 1});
    // begin
    const mz::Tensor channel_means = mz::mean(x, {0, 1, 2});  // PyTorch: x.mean(dim=(0, 2, 3))
    const mz::Tensor pooled = mz::mean(x, {1, 2});            // PyTorch: x.mean(dim=(2, 3))
    const mz::Tensor red = x.select(-1, 0);                   // PyTorch: x[:, 0]
    const mz::Tensor both = mz::cat({x, x}, -1);              // PyTorch: torch.cat([x, x], dim=1)
    const mz::Tensor shifted =
        x + mz::Tensor::from({0.1f, 0.2f, 0.3f});  // per channel, by broadcasting alone
    // end
    CHECK(channel_means.shape() == mz::Shape{3});
    CHECK(pooled.shape() == mz::Shape{8, 3});
    CHECK(red.shape() == mz::Shape{8, 10, 12});
    CHECK(both.shape() == mz::Shape{8, 10, 12, 6});
    CHECK((shifted - x)[0][0][0][2].item<float>() == Approx(0.3f).epsilon(1e-4));
}

TEST_CASE("coming from PyTorch: flattening", "[recipes]") {
    mz::manual_seed(2);
    const mz::Tensor planes = mz::randn({2, 5, 3, 4}), x = planes.permute({0, 2, 3, 1});
    nn::Linear classifier(60, 7);
    const mz::Tensor expected = classifier(planes.flatten(1));
    // begin
    const mz::Tensor y =
        classifier(x.permute({0, 3, 1, 2}).flatten(1));  // with a Linear that PyTorch trained
    // end
    CHECK(floats(y) == floats(expected));
    // begin
    // Once, after loading; from here on classifier(x.flatten(1)) is the same without the copy.
    const mz::Tensor columns = classifier.weight.detach().reshape({7, 5, 3, 4}).permute({0, 2, 3, 1});
    classifier.weight = nn::Parameter(columns.reshape({7, 60}));
    // end
    const std::vector<float> again = floats(classifier(x.flatten(1))), wanted = floats(expected);
    for (std::size_t i = 0; i < wanted.size(); ++i) CHECK(again[i] == Approx(wanted[i]).margin(1e-5));
}

TEST_CASE("coming from PyTorch: weights", "[recipes]") {
    const mz::test::Folder folder;
    const std::string path = folder.file("model.safetensors");
    mz::io::save_safetensors(path, {{"weight", mz::rand({16, 3, 5, 7})}, {"bias", mz::rand({16})}});
    // begin
    nn::Conv2d conv(3, 16, {5, 7});
    conv.load_state_dict(mz::io::load_state_dict_file(path));        // a file of PyTorch's: OIHW
    const mz::Shape in_files = conv.state_dict()[0].second.shape();  // [16, 3, 5, 7]
    const mz::Shape in_memory = conv.weight.shape();                 // [16, 5, 7, 3]
    const mz::Tensor of_pytorch = mz::rand({16, 3, 5, 7});           // one by hand
    const mz::Tensor y = mz::conv2d(mz::rand({1, 9, 9, 3}), of_pytorch.permute({0, 2, 3, 1}));
    // end
    CHECK(in_files == mz::Shape{16, 3, 5, 7});
    CHECK(in_memory == mz::Shape{16, 5, 7, 3});
    CHECK(y.shape() == mz::Shape{1, 5, 3, 16});
}

TEST_CASE("coming from PyTorch: a layer of one's own", "[recipes]") {
    // begin
    struct ScaledConv : nn::Module {
        nn::Parameter kernel{mz::randn({8, 3, 3, 4})};  // [out, height, width, in]
        nn::Parameter scale{mz::ones({8})};
        mz::Tensor operator()(const mz::Tensor& x) const { return mz::conv2d(x, kernel) * scale; }
        mz::Tensor as_saved(std::string_view field, const mz::Tensor& tensor) const override {
            return field == "kernel" ? tensor.permute({0, 3, 1, 2}) : tensor;
        }
        MEZZO_MODULE(ScaledConv, kernel, scale)
    };
    // end
    const ScaledConv layer;
    CHECK(layer.state_dict()[0].second.shape() == mz::Shape{8, 4, 3, 3});
    CHECK(layer(mz::ones({1, 4, 4, 4})).shape() == mz::Shape{1, 2, 2, 8});
}

TEST_CASE("coming from PyTorch: start values", "[recipes]") {
    mz::manual_seed(3);
    nn::Conv2d conv(16, 32, 3);
    nn::Linear fc(32, 10);
    // begin
    nn::init::kaiming_normal_(
        conv.weight, {.mode = nn::init::FanMode::fan_out, .nonlinearity = nn::init::Nonlinearity::relu});
    nn::init::trunc_normal_(fc.weight, {.std = 0.02});
    nn::init::zeros_(fc.bias);
    // end
    CHECK(mz::norm(conv.weight).item<double>() ==
          Approx(std::sqrt(2 / 288.0) * std::sqrt(4608.0)).epsilon(0.05));
    CHECK(mz::norm(fc.weight).item<double>() == Approx(0.02 * std::sqrt(320.0)).epsilon(0.2));
    CHECK(mz::norm(fc.bias).item<double>() == 0);
}

TEST_CASE("coming from PyTorch: recurrent layers", "[recipes]") {
    const mz::Tensor x = mz::randn({2, 7, 16}), more = mz::randn({2, 4, 16});
    // begin
    nn::LSTM lstm(16, 32, {.num_layers = 2, .batch_first = true, .dropout = 0.2, .bidirectional = true});
    const mz::Tensor lengths = mz::Tensor::from(std::vector<std::int64_t>{7, 3}, {2});
    const auto [output, h_n, c_n] = lstm(x, {}, lengths);  // x [2, 7, 16], states of zeros
    const nn::LSTMResult next = lstm(more, {h_n, c_n});    // goes on from there
    // end
    CHECK(output.shape() == mz::Shape{2, 7, 64});
    CHECK(output[1].slice(0, 3, 7).abs().max().item<float>() == 0);
    CHECK(next.c_n.shape() == mz::Shape{4, 2, 32});
}

TEST_CASE("coming from PyTorch: hooks and computed weights", "[recipes]") {
    // begin
    struct TwoLayers : nn::Module {
        nn::Linear hidden{8, 16};
        nn::WeightNorm<nn::Linear> head = nn::weight_norm(nn::Linear(16, 2));
        mz::Tensor operator()(const mz::Tensor& x) const {
            return with_hooks([this](const mz::Tensor& in) { return head(mz::relu(hidden(in))); }, x);
        }
        MEZZO_MODULE(TwoLayers, hidden, head)
    };
    // end
    TwoLayers net;
    const mz::Tensor x = mz::randn({3, 8});
    // begin
    mz::Tensor features, gradient;
    const nn::RemovableHandle handle = net.hidden.register_forward_hook(
        [&](const nn::Module&, const mz::Tensors&, mz::Tensors& outputs) { features = outputs[0].detach(); });
    net.register_full_backward_hook([&](mz::Tensors&, const mz::Tensors& outputs) { gradient = outputs[0]; });
    net(x).sum().backward();
    handle.remove();
    // end
    CHECK(features.shape() == mz::Shape{3, 16});
    CHECK(gradient.to_vector<float>() == std::vector<float>(6, 1));
    CHECK_FALSE(net.hidden.has_hooks());
    CHECK(net.state_dict().names()[3] == "head.parametrizations.weight.original0");
}
