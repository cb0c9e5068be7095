// Convolutions as layers: initial values, printing, and their weights in states and files in PyTorch's order.
#include <catch2/catch.hpp>

#include <array>
#include <cmath>
#include <cstring>

#include "mezzo/amp.h"
#include "mezzo/averaged_model.h"
#include "mezzo/data/table.h"
#include "mezzo/io.h"
#include "mezzo/nn.h"
#include "mezzo/optim.h"
#include "tests/nn/module_helpers.h"
#include "tests/reference/conv.h"
#include "tests/support/folder.h"
#include "tests/support/support.h"

using namespace mezzo;
using Catch::Matchers::Contains;

namespace {

// The formula waves() of tools/reference_conv.py.
Tensor waves(const Shape& shape, double phase) {
    std::vector<double> values;
    for (std::int64_t i = 0; i < shape.numel(); ++i) values.push_back(std::sin(1.3 * double(i) + phase));
    return Tensor::from(values, shape);
}
Size2d pair_of(const std::int64_t (&numbers)[2]) { return {numbers[0], numbers[1]}; }

Tensor counted(const Shape& shape) { return arange(shape.numel(), {.dtype = float32}).reshape(shape); }
std::vector<double> count_up(std::int64_t n) { return test::doubles(arange(n)); }

double largest(const Tensor& x) { return max(abs(x)).item<double>(); }

const StateDict::value_type& entry(const StateDict& state, const std::string& name) {
    for (const auto& named : state)
        if (named.first == name) return named;
    FAIL("no entry " + name);
    return state[0];
}

// A small network with convolutions in a Sequential, a vector and a field.
struct Net : nn::Module {
    Net() {
        for (int i = 0; i < 2; ++i)
            blocks.emplace_back(4, 4, 3, nn::Conv2dLayerOptions{.padding = 1, .groups = 2});
    }
    Tensor operator()(const Tensor& x) const {
        Tensor y = relu(norm(stem(x)));
        for (const nn::Conv2d& block : blocks) y = relu(block(y));
        return mean(up(y), {1, 2});
    }
    nn::Sequential stem{nn::Conv2d(3, 4, {3, 2}, {.stride = 2, .bias = false})};
    nn::BatchNorm2d norm{4};
    std::vector<nn::Conv2d> blocks;
    nn::ConvTranspose2d up{4, 5, 2, {.stride = 2}};
    MEZZO_MODULE(Net, stem, norm, blocks, up)
};

// Runs one training step. Returns the loss.
double train(Net& net, optim::Optimizer& optimizer, const Tensor& x, bool autocast) {
    optimizer.zero_grad();
    Tensor loss;
    {
        const amp::Autocast scope({.device = x.device().type(), .dtype = bfloat16, .enabled = autocast});
        loss = mean(square(net(x) - 1.0));
    }
    loss.backward();
    optimizer.step();
    return loss.item<double>();
}

void check_same(const StateDict& a, const StateDict& b) {
    REQUIRE(test::names_of(a) == test::names_of(b));
    for (std::size_t i = 0; i < a.size(); ++i) {
        CAPTURE(a[i].first);
        CHECK(a[i].second.shape() == b[i].second.shape());
        CHECK(test::doubles(a[i].second) == test::doubles(b[i].second));
    }
}

}  // namespace

TEST_CASE("convolution layers hold weights of channels last, and start as in PyTorch", "[conv]") {
    manual_seed(3);
    const nn::Conv2d conv(6, 32, {3, 5}, {.groups = 2});
    CHECK(conv.weight.shape() == Shape{32, 3, 5, 3});
    CHECK(conv.weight.is_contiguous());
    CHECK(conv.bias.shape() == Shape{32});
    const nn::Conv1d signal(6, 32, 5, {.bias = false});
    CHECK(signal.weight.shape() == Shape{32, 5, 6});
    CHECK_FALSE(signal.bias.defined());
    const nn::ConvTranspose2d up(6, 32, 3, {.groups = 2, .dtype = float64});
    CHECK(up.weight.shape() == Shape{6, 3, 3, 16});
    CHECK(up.weight.dtype() == float64);
    CHECK(up.bias.shape() == Shape{32});
    for (const auto& [weight, fan_in] :
         {std::pair(conv.weight, 3 * 5 * 3), std::pair(signal.weight, 5 * 6), std::pair(up.weight, 9 * 16),
          std::pair(conv.bias, 3 * 5 * 3), std::pair(up.bias, 9 * 16)}) {
        const double bound = 1 / std::sqrt(double(fan_in));
        CHECK(largest(weight) <= bound);
        CHECK(largest(weight) > 0.85 * bound);
        CHECK(std::abs(mean(weight).item<double>()) < 0.35 * bound);
    }
    CHECK(nn::Conv2d(0, 4, 3).weight.shape() == Shape{4, 3, 3, 0});
}

TEST_CASE("convolution layers print as in PyTorch", "[conv]") {
    CHECK(nn::Conv2d(3, 64, 7, {.stride = 2, .padding = 3, .bias = false}).to_string() ==
          "Conv2d(3, 64, kernel_size=(7, 7), stride=(2, 2), padding=(3, 3), bias=false)");
    CHECK(nn::Conv2d(4, 8, {3, 5}, {.dilation = {1, 2}, .groups = 4}).to_string() ==
          "Conv2d(4, 8, kernel_size=(3, 5), stride=(1, 1), dilation=(1, 2), groups=4)");
    CHECK(nn::Conv1d(3, 6, 5, {.stride = 2, .padding = 1, .groups = 3}).to_string() ==
          "Conv1d(3, 6, kernel_size=(5,), stride=(2,), padding=(1,), groups=3)");
    CHECK(nn::ConvTranspose2d(8, 4, {2, 3},
                              {.stride = 2, .output_padding = {1, 0}, .bias = false, .dilation = {1, 2}})
              .to_string() ==
          "ConvTranspose2d(8, 4, kernel_size=(2, 3), stride=(2, 2), dilation=(1, 2), output_padding=(1, 0), "
          "bias=false)");
}

TEST_CASE("convolution layers of signals and volumes, with every kind of padding", "[conv]") {
    const nn::Conv3d conv(4, 6, {3, 2, 1}, {.groups = 2});
    CHECK(conv.weight.shape() == Shape{6, 3, 2, 1, 2});
    CHECK(entry(conv.state_dict(), "weight").second.shape() == Shape{6, 2, 3, 2, 1});
    const nn::ConvTranspose3d up(4, 6, 2, {.stride = 2});
    CHECK(entry(up.state_dict(), "weight").second.shape() == Shape{4, 6, 2, 2, 2});
    CHECK(up(waves({1, 2, 3, 2, 4}, 0).to(float32)).shape() == Shape{1, 4, 6, 4, 6});
    CHECK(up(waves({1, 2, 3, 2, 4}, 0).to(float32), {5, 6, 4}).shape() == Shape{1, 5, 6, 4, 6});
    const nn::ConvTranspose1d line(4, 6, 3, {.stride = 2, .padding = 1});
    CHECK(entry(line.state_dict(), "weight").second.shape() == Shape{4, 6, 3});
    CHECK(line(waves({1, 5, 4}, 0).to(float32), 10).shape() == Shape{1, 10, 6});
    CHECK_THROWS_WITH(line(waves({1, 5, 4}, 0).to(float32), 12), Contains("output_padding 3"));

    const Tensor x = waves({2, 5, 6, 3}, 0.5).to(float32);
    const nn::Conv2d same(3, 4, {2, 3}, {.padding = same_padding});
    CHECK(same(x).shape() == Shape{2, 5, 6, 4});
    for (const PadMode mode : {PadMode::reflect, PadMode::replicate, PadMode::circular}) {
        const nn::Conv2d around(3, 4, 3, {.padding = {2, 1}, .padding_mode = mode});
        const Tensor expected = conv2d(pad(x, {{1, 2, 2}, {2, 1, 1}}, mode), around.weight, around.bias);
        CHECK(largest(around(x) - expected) == 0);
    }
    const nn::Conv1d reflected(3, 4, 4, {.padding = same_padding, .padding_mode = PadMode::reflect});
    CHECK(largest(reflected(x.select(1, 0)) - conv1d(pad(x.select(1, 0), {{1, 1, 2}}, PadMode::reflect),
                                                     reflected.weight, reflected.bias)) == 0);
    CHECK(reflected.to_string() ==
          "Conv1d(3, 4, kernel_size=(4,), stride=(1,), padding=same, padding_mode=reflect)");
    CHECK(conv.to_string() == "Conv3d(4, 6, kernel_size=(3, 2, 1), stride=(1, 1, 1), groups=2)");
    CHECK_THROWS_WITH(nn::Conv2d(3, 4, 3, {.stride = 2, .padding = same_padding}),
                      Contains("needs stride 1"));
}

TEST_CASE("convolution layers refuse what no convolution can have", "[conv]") {
    const auto refuses = [](const auto& make, const char* text) {
        CHECK_THROWS_WITH(make(), Contains(text));
        try {
            make();
        } catch (const Error& e) {
            CHECK(e.kind() == ErrorKind::value);
        }
    };
    refuses([] { nn::Conv2d(3, 4, 0); }, "Conv2d: kernel_size 0 is not in [1");
    refuses([] { nn::Conv2d(3, 4, {3, -1}); }, "kernel_size -1");
    refuses([] { nn::Conv2d(3, 4, 3, {.stride = {1, 0}}); }, "stride 0");
    refuses([] { nn::Conv2d(3, 4, 3, {.padding = -1}); }, "padding -1");
    refuses([] { nn::Conv2d(3, 4, 3, {.dilation = 0}); }, "dilation 0");
    refuses([] { nn::Conv2d(3, 4, 3, {.groups = 0}); }, "groups 0");
    refuses([] { nn::Conv2d(3, 4, 3, {.groups = 2}); }, "2 groups do not divide in_channels 3");
    refuses([] { nn::Conv2d(4, 3, 3, {.groups = 2}); }, "2 groups do not divide out_channels 3");
    refuses([] { nn::Conv2d(-1, 3, 3); }, "in_channels is -1");
    refuses([] { nn::Conv1d(3, 4, 3, {.stride = 0}); }, "Conv1d: stride 0");
    refuses(
        [] {
            nn::ConvTranspose2d(3, 4, 3, {.output_padding = {0, 1}});
        },
        "ConvTranspose2d: output_padding 1 is not in [0, 1)");
    CHECK_THROWS_AS(nn::Conv2d(3, 4, 3, {.dtype = int64}), Error);
}

TEST_CASE("layers with PyTorch's weights give PyTorch's results", "[conv]") {
    for (const reference::Convolution& c : reference::convolutions) {
        CAPTURE(&c - reference::convolutions);
        const Size2d kernel(c.weight[2], c.weight[3]),
            stride = pair_of(c.stride), padding = pair_of(c.padding), dilation = pair_of(c.dilation);
        StateDict state{{"weight", waves({c.weight, 4}, 1.5)}};
        const std::int64_t outs = c.transposed ? c.weight[1] * c.groups : c.weight[0];
        if (c.bias) state.emplace_back("bias", waves({outs}, 2.5));
        const Tensor x = waves({c.x, 4}, 0.5).permute({0, 2, 3, 1});
        Tensor y;
        if (c.transposed) {
            nn::ConvTranspose2d layer(c.x[1], outs, kernel,
                                      {.stride = stride,
                                       .padding = padding,
                                       .output_padding = pair_of(c.output_padding),
                                       .groups = c.groups,
                                       .bias = c.bias,
                                       .dilation = dilation,
                                       .dtype = float64});
            layer.load_state_dict(state);
            y = layer(x);
        } else {
            nn::Conv2d layer(c.x[1], outs, kernel,
                             {.stride = stride,
                              .padding = padding,
                              .dilation = dilation,
                              .groups = c.groups,
                              .bias = c.bias,
                              .dtype = float64});
            layer.load_state_dict(state);
            y = layer(x);
        }
        const std::vector<double> got = test::doubles(y.permute({0, 3, 1, 2}));
        CHECK(test::difference(got, c.values.first(got.size()), {1e-11, 1e-11}) == "");
    }
}

TEST_CASE("the state of a convolution is a view in PyTorch's order", "[conv][io]") {
    nn::Conv2d conv(3, 2, {2, 4});
    const StateDict state = conv.state_dict();
    CHECK(test::names_of(state) == std::vector<std::string>{"weight", "bias"});
    CHECK(state[0].second.shape() == Shape{2, 3, 2, 4});
    CHECK_FALSE(state[0].second.requires_grad());
    CHECK(conv.named_parameters()[0].second.shape() == Shape{2, 2, 4, 3});
    state[0].second.copy_(counted({2, 3, 2, 4}));
    for (const auto& [o, i, r, s] : {std::array{0, 0, 0, 1}, std::array{1, 2, 1, 3}, std::array{1, 0, 1, 0}})
        CHECK(conv.weight[o][r][s][i].item<int>() == ((o * 3 + i) * 2 + r) * 4 + s);
    CHECK(nn::Conv1d(3, 2, 5).state_dict()[0].second.shape() == Shape{2, 3, 5});
    CHECK(nn::ConvTranspose2d(3, 4, {2, 5}).state_dict()[0].second.shape() == Shape{3, 4, 2, 5});

    const StateDict all = Net().state_dict();
    CHECK(test::names_of(all) == std::vector<std::string>{"stem.0.weight", "norm.weight", "norm.bias",
                                                          "norm.running_mean", "norm.running_var",
                                                          "norm.num_batches_tracked", "blocks.0.weight",
                                                          "blocks.0.bias", "blocks.1.weight", "blocks.1.bias",
                                                          "up.weight", "up.bias"});
    CHECK(entry(all, "stem.0.weight").second.shape() == Shape{4, 3, 3, 2});
    CHECK(entry(all, "blocks.1.weight").second.shape() == Shape{4, 2, 3, 3});
    CHECK(entry(all, "up.weight").second.shape() == Shape{4, 5, 2, 2});
}

TEST_CASE("a state of another order is refused, and the text names OIHW", "[conv][io]") {
    nn::Conv2d conv(3, 2, {2, 4});
    const std::vector<double> before = test::doubles(conv.weight);
    StateDict state = conv.state_dict();
    state[0].second = zeros(conv.weight.shape());
    CHECK_THROWS_WITH(
        conv.load_state_dict(state),
        Contains("weight ([2, 2, 4, 3], not [2, 3, 2, 4], PyTorch's order: of convolutions OIHW)"));
    CHECK_THROWS_WITH(io::load_weights(conv, state),
                      Contains("[2, 2, 4, 3] in the file, [2, 3, 2, 4] in the model"));
    CHECK(test::doubles(conv.weight) == before);
}

TEST_CASE("files of convolutions hold OIHW", "[conv][io]") {
    const test::Folder folder;
    const auto bytes_of = [](std::int64_t count) {
        std::string bytes;
        for (std::int64_t i = 0; i < count; ++i) {
            const auto value = float(i);
            char four[4];
            std::memcpy(four, &value, 4);
            bytes.append(four, 4);
        }
        return bytes;
    };
    const auto check_file = [&](nn::Module& layer, nn::Module& other, const Shape& shape,
                                const std::string& header) {
        layer.load_state_dict({{"weight", counted(shape)}});
        const std::string path = folder.file("weights.safetensors");
        io::save_safetensors(path, layer.state_dict());
        const std::string file = folder.read("weights.safetensors");
        CHECK_THAT(file, Contains(R"("weight":{"dtype":"F32","shape":)" + header));
        CHECK(file.substr(file.size() - std::size_t(4 * shape.numel())) == bytes_of(shape.numel()));
        other.load_state_dict(io::load_state_dict_file(path));
        CHECK(test::doubles(other.named_parameters()[0].second) ==
              test::doubles(layer.named_parameters()[0].second));
        CHECK(test::doubles(other.state_dict()[0].second) == count_up(shape.numel()));
        const StateDict scaled{{"weight", counted(shape) * 2.0}};
        CHECK(io::load_weights(other, scaled).loaded == std::vector<std::string>{"weight"});
        CHECK(test::doubles(other.state_dict()[0].second * 0.5) == count_up(shape.numel()));
    };
    nn::Conv2d conv(3, 2, {2, 4}, {.bias = false}), other(3, 2, {2, 4}, {.bias = false});
    check_file(conv, other, {2, 3, 2, 4}, "[2,3,2,4]");
    nn::Conv1d signal(3, 2, 4, {.bias = false}), other_signal(3, 2, 4, {.bias = false});
    check_file(signal, other_signal, {2, 3, 4}, "[2,3,4]");
    nn::ConvTranspose2d up(3, 4, {2, 5}, {.groups = 1, .bias = false}),
        other_up(3, 4, {2, 5}, {.bias = false});
    check_file(up, other_up, {3, 4, 2, 5}, "[3,4,2,5]");
}

TEST_CASE("training goes on from a checkpoint as if it had not stopped", "[conv][io]") {
    const test::Folder folder;
    for (const Device device : test::devices())
        for (const bool autocast : {false, true}) {
            CAPTURE(name(device.type()), autocast);
            manual_seed(5);
            Net net;
            net.to(device);
            const Tensor x = randn({4, 9, 8, 3}).to(device);
            optim::SGD optimizer(net.named_parameters(), {.lr = 0.1, .momentum = 0.9});
            for (int i = 0; i < 2; ++i) train(net, optimizer, x, autocast);
            io::save_checkpoint(folder.file("run.ckpt"),
                                {.model = net.state_dict(), .optimizer = optimizer.state_dict()});
            Net again;
            again.to(device);
            optim::SGD resumed(again.named_parameters(), {.lr = 0.1, .momentum = 0.9});
            // Under autocast these steps leave 16-bit copies of other weights, which loading must not use.
            train(again, resumed, x, autocast);
            const io::Checkpoint saved = io::load_checkpoint(folder.file("run.ckpt"));
            CHECK(entry(saved.model, "blocks.0.weight").second.shape() == Shape{4, 2, 3, 3});
            again.load_state_dict(saved.model);
            resumed.load_state_dict(saved.optimizer);
            for (int i = 0; i < 2; ++i)
                CHECK(train(net, optimizer, x, autocast) == train(again, resumed, x, autocast));
            check_same(net.state_dict(), again.state_dict());
            check_same(optimizer.state_dict(), resumed.state_dict());
        }
}

TEST_CASE("averages of convolutions are in PyTorch's order, too", "[conv]") {
    manual_seed(6);
    Net net, target;
    optim::AveragedModel average(net);
    const StateDict first = net.state_dict();
    StateDict expected;
    for (const auto& [name, value] : first) expected.emplace_back(name, value.clone());
    average.update_parameters(net);
    {
        const NoGrad plain;
        for (const Tensor& p : net.parameters()) p.mul_(3.0);
    }
    average.update_parameters(net);
    for (auto& [name, value] : expected)
        for (const auto& [trained, p] : net.named_parameters())
            if (trained == name) value = value * 2.0;
    average.copy_to(target);
    const StateDict got = target.state_dict();
    for (std::size_t i = 0; i < got.size(); ++i) {
        CAPTURE(got[i].first);
        if (got[i].first.starts_with("norm.") && got[i].first != "norm.weight" && got[i].first != "norm.bias")
            continue;
        CHECK(test::difference(test::doubles(got[i].second), test::doubles(expected[i].second),
                               {1e-6, 1e-7}) == "");
    }
    const StateDict saved = average.state_dict();
    CHECK(entry(saved, "module.blocks.0.weight").second.shape() == Shape{4, 2, 3, 3});
    optim::AveragedModel loaded(target);
    loaded.load_state_dict(saved);
    check_same(loaded.state_dict(), saved);
    loaded.update_parameters(net);
}

TEST_CASE("amp presets keep the order of a convolution's state", "[conv][amp]") {
    for (const std::string level : {"O1", "O2", "O3"}) {
        manual_seed(7);
        Net net;
        const StateDict before = Net(net).state_dict();
        const std::vector<double> start = test::doubles(entry(before, "blocks.0.weight").second.to(float16));
        optim::SGD optimizer(net.named_parameters(), {.lr = 0.01});
        const amp::Handle handle = amp::initialize(net, optimizer, {.opt_level = level});
        const bool low = level != "O1";
        CHECK(net.blocks[0].weight.dtype() == (low ? float16 : float32));
        const StateDict state = net.state_dict();
        CHECK(entry(state, "blocks.0.weight").second.shape() == Shape{4, 2, 3, 3});
        CHECK(test::doubles(entry(state, "blocks.0.weight").second.to(float16)) == start);
        Net other;
        other.load_state_dict(state);
        if (low) check_same(other.state_dict(), state);
    }
}

TEST_CASE("a module says how its own fields are saved", "[conv][nn]") {
    struct Table : nn::Module {
        nn::Parameter matrix{zeros({2, 3})};
        nn::Buffer row{zeros({4})};
        nn::Conv1d inner{2, 3, 5, {.bias = false}};
        Tensor as_saved(std::string_view field, const Tensor& tensor) const override {
            return field == "matrix" ? tensor.t() : tensor;
        }
        MEZZO_MODULE(Table, matrix, row, inner)
    };
    struct Outer : nn::Module {
        std::vector<Table> tables{2};
        nn::Parameter matrix{zeros({7, 8})};  // not asked of the tables
        MEZZO_MODULE(Outer, tables, matrix)
    };
    Outer outer;
    const StateDict state = outer.state_dict();
    CHECK(entry(state, "tables.1.matrix").second.shape() == Shape{3, 2});
    CHECK(entry(state, "tables.1.row").second.shape() == Shape{4});
    CHECK(entry(state, "tables.1.inner.weight").second.shape() == Shape{3, 2, 5});
    CHECK(entry(state, "matrix").second.shape() == Shape{7, 8});
    outer.load_state_dict({{"tables.0.matrix", counted({3, 2})}}, false);
    CHECK(test::doubles(outer.tables[0].matrix) == std::vector<double>{0, 2, 4, 1, 3, 5});
    outer.to(float16);
    CHECK(outer.tables[0].matrix.shape() == Shape{2, 3});
    CHECK(test::doubles(entry(outer.state_dict(), "tables.0.matrix").second) == count_up(6));
}
