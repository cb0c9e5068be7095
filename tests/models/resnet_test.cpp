// ResNets: counts, names, shapes, values against plain ops in float64, running statistics, presets, files.
#include "mezzo/models/resnet.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "mezzo/amp.h"
#include "mezzo/autocast.h"
#include "mezzo/autograd.h"
#include "mezzo/distributed/state.h"
#include "mezzo/io.h"
#include "mezzo/optim.h"
#include "tests/nn/module_helpers.h"
#include "tests/support/folder.h"
#include "tests/support/support.h"

using namespace mezzo;
using Catch::Matchers::Contains;
using nn::ResNetBlockKind;
using nn::ResNetConfig;
using nn::ResNetShortcut;
using nn::ResNetStem;
using test::doubles;
using test::names_of;

namespace {

// Small enough for the slowest kernels; every kind of block occurs with and without a change of shape.
ResNetConfig tiny(ResNetBlockKind block = ResNetBlockKind::basic,
                  ResNetShortcut shortcut = ResNetShortcut::projection) {
    return {.block = block,
            .layers = {2, 1},
            .width = 4,
            .stem = ResNetStem::cifar,
            .shortcut = shortcut,
            .num_classes = 3};
}

Tensor images(std::int64_t n, std::int64_t size = 6, Dtype dtype = float32) {
    return test::tensor_of(test::random_values(n * size * size * 3, 5, test::Domain::any), {n, size, size, 3},
                           dtype);
}
Tensor labels(std::int64_t n) {
    std::vector<std::int64_t> values;
    for (std::int64_t i = 0; i < n; ++i) values.push_back(i % 3);
    return Tensor::from(values, {n});
}

std::vector<std::string> torchvision_names() {
    std::vector<std::string> names{"conv1.weight"};
    const auto norm = [&](const std::string& name) {
        for (const char* field : {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"})
            names.push_back(name + "." + field);
    };
    norm("bn1");
    const int blocks[] = {3, 4, 6, 3};
    for (int stage = 0; stage < 4; ++stage)
        for (int i = 0; i < blocks[stage]; ++i) {
            const std::string block = "layer" + std::to_string(stage + 1) + "." + std::to_string(i) + ".";
            for (const char* part : {"1", "2", "3"}) {
                names.push_back(block + "conv" + part + ".weight");
                norm(block + "bn" + part);
            }
            if (i > 0) continue;
            names.push_back(block + "downsample.0.weight");
            norm(block + "downsample.1");
        }
    names.insert(names.end(), {"fc.weight", "fc.bias"});
    return names;
}

// ResNet by the paper's equations, from named weights, in float64 and in ops that do one thing each.
class Plain {
public:
    Plain(const nn::ResNet& net) : config_(net.config), weights_(net.named_parameters()) {}
    Tensor at(const std::string& name) const {
        for (const auto& [key, value] : weights_)
            if (key == name) return value;
        return {};
    }
    Tensor norm(const std::string& name, const Tensor& x) const {
        const Tensor c = x - mean(x, {0, 1, 2}), variance = mean(c * c, {0, 1, 2});
        return c / sqrt(variance + 1e-5) * at(name + ".weight") + at(name + ".bias");
    }
    Tensor conv(const std::string& name, const Tensor& x, std::int64_t stride = 1) const {
        const Tensor weight = at(name + ".weight");
        return conv2d(x, weight, {}, {.stride = stride, .padding = weight.size(1) / 2});
    }
    Tensor block(const std::string& name, const Tensor& x, std::int64_t stride) const {
        const bool bottleneck = config_.block == ResNetBlockKind::bottleneck;
        Tensor y = relu(norm(name + "bn1", conv(name + "conv1", x, bottleneck ? 1 : stride)));
        y = norm(name + "bn2", conv(name + "conv2", y, bottleneck ? stride : 1));
        if (bottleneck) y = norm(name + "bn3", conv(name + "conv3", relu(y)));
        Tensor added = x;
        if (at(name + "downsample.0.weight").defined()) {
            added = norm(name + "downsample.1", conv(name + "downsample.0", x, stride));
        } else if (stride != 1) {
            added = x.slice(1, 0, x.size(1), 2).slice(2, 0, x.size(2), 2);
            Shape shape = added.shape();
            shape.back() = y.size(3) - x.size(3);
            added = cat({added, zeros(shape, {.dtype = x.dtype()})}, 3);
        }
        return relu(y + added);
    }
    Tensor logits(const Tensor& x) const {
        Tensor y = relu(norm("bn1", conv("conv1", x)));
        for (std::size_t stage = 0; stage < config_.layers.size(); ++stage)
            for (std::int64_t i = 0; i < config_.layers[stage]; ++i)
                y = block("layer" + std::to_string(stage + 1) + "." + std::to_string(i) + ".", y,
                          stage > 0 && i == 0 ? 2 : 1);
        return matmul(mean(y, {1, 2}), at("fc.weight").t()) + at("fc.bias");
    }

private:
    ResNetConfig config_;
    StateDict weights_;
};

void check_close(const Tensor& actual, const Tensor& expected, test::Tolerance allowed) {
    REQUIRE(actual.shape() == expected.shape());
    CHECK(test::difference(doubles(actual), doubles(expected), allowed) == "");
}

std::vector<double> all_values(const StateDict& state) {
    std::vector<double> values;
    for (const auto& [name, tensor] : state)
        for (const double v : doubles(tensor)) values.push_back(v);
    return values;
}

}  // namespace

TEST_CASE("resnet: numbers of parameters", "[resnet]") {
    const auto expect = [](const ResNetConfig& config, std::int64_t parameters, std::size_t names) {
        const nn::ResNet net(config);
        CHECK(net.num_parameters() == parameters);
        CHECK(net.state_dict().size() == names);
    };
    // torchvision's, and those of the paper's networks for CIFAR-10.
    expect(nn::resnet_config(18), 11'689'512, 122);
    expect(nn::resnet_config(34), 21'797'672, 218);
    expect(nn::resnet_config(50), 25'557'032, 320);
    expect(nn::resnet_config(101), 44'549'160, 626);
    expect(nn::resnet_config(8), 75'290, 44);
    expect(nn::resnet_config(20), 269'722, 116);
    expect(nn::resnet_config(56), 853'018, 332);
    ResNetConfig config = nn::resnet_config(50);
    config.stem = ResNetStem::cifar;
    config.num_classes = 10;
    expect(config, 23'520'842, 320);
    config = nn::resnet_config(20);
    config.shortcut = ResNetShortcut::projection;
    expect(config, 272'474, 128);
    CHECK_THROWS_WITH(nn::resnet_config(19), Contains("no network of 19 layers; there are 18, 34"));
}

TEST_CASE("resnet: names and shapes in files are torchvision's", "[resnet][io]") {
    const nn::ResNet net(nn::resnet_config(50));
    const StateDict state = net.state_dict();
    CHECK(names_of(state) == torchvision_names());
    CHECK(net.named_parameters().size() == 161);
    const auto shape = [&](const std::string& wanted) {
        for (const auto& [name, value] : state)
            if (name == wanted) return value.shape();
        return Shape{};
    };
    CHECK(shape("conv1.weight") == Shape{64, 3, 7, 7});
    CHECK(shape("layer2.0.conv2.weight") == Shape{128, 128, 3, 3});
    CHECK(shape("layer4.0.downsample.0.weight") == Shape{2048, 1024, 1, 1});
    CHECK(shape("fc.weight") == Shape{1000, 2048});
    CHECK(shape("bn1.num_batches_tracked") == Shape{});
}

TEST_CASE("resnet: a file gives back the same bits", "[resnet][io]") {
    const test::Folder folder;
    nn::ResNet net(tiny(ResNetBlockKind::bottleneck)), other(tiny(ResNetBlockKind::bottleneck));
    test::disturb(net);
    io::save_safetensors(folder.file("a"), net.state_dict());
    const io::LoadReport report =
        io::load_weights(other, io::load_state_dict_file(folder.file("a")), {.strict = true});
    CHECK(report.unexpected.empty());
    CHECK(all_values(other.named_parameters()) == all_values(net.named_parameters()));
    io::save_safetensors(folder.file("b"), other.state_dict());
    CHECK(folder.read("a") == folder.read("b"));
    // Weights in memory order are refused because of their shape.
    StateDict wrong = net.state_dict();
    for (auto& [name, value] : wrong)
        if (name == "layer1.0.conv2.weight") value = value.permute({0, 2, 3, 1});
    CHECK_THROWS_WITH(io::load_weights(other, wrong),
                      Contains("layer1.0.conv2.weight") && Contains("[4, 4, 3, 3]"));
}

TEST_CASE("resnet: names of other programs", "[resnet][io]") {
    CHECK(io::resnet_name("layer1.0.shortcut.0.weight") == "layer1.0.downsample.0.weight");
    CHECK(io::resnet_name("module.layer4.0.shortcut.1.running_var") == "layer4.0.downsample.1.running_var");
    CHECK(io::resnet_name("linear.bias") == "fc.bias");
    CHECK(io::resnet_name("module.linear.weight") == "fc.weight");
    CHECK(io::resnet_name("layer1.0.linear.weight") == "layer1.0.linear.weight");
    CHECK(io::resnet_name("layer1.0.downsample.0.weight") == "layer1.0.downsample.0.weight");
    CHECK(io::resnet_name("shortcut.weight") == "shortcut.weight");
    CHECK(io::resnet_name("") == "");
    nn::ResNet net(tiny());
    StateDict seed;
    for (const auto& [name, value] : net.state_dict()) {
        std::string old = name.starts_with("fc.") ? "linear." + name.substr(3) : name;
        if (const std::size_t at = old.find("downsample"); at != old.npos) old.replace(at, 10, "shortcut");
        seed.emplace_back("module." + old, value + 0);
    }
    const io::LoadReport report = io::load_weights(net, seed, {.rename = io::resnet_name, .strict = true});
    CHECK(report.unexpected.empty());
}

TEST_CASE("resnet: shapes of both stems", "[resnet]") {
    const NoGrad no_grad;
    const auto sizes = [](const ResNetConfig& config, std::int64_t size, std::int64_t batch = 2) {
        nn::ResNet net(config);
        net.eval();
        std::vector<std::int64_t> result;
        const Tensor x = zeros({batch, size, size, config.in_channels});
        for (const Tensor& stage : net.features(x)) {
            CHECK(stage.size(0) == batch);
            CHECK(stage.size(1) == stage.size(2));
            result.insert(result.end(), {stage.size(1), stage.size(3)});
        }
        CHECK(net(x).shape() == Shape{batch, config.num_classes});
        return result;
    };
    using Sizes = std::vector<std::int64_t>;
    ResNetConfig config{
        .block = ResNetBlockKind::basic, .layers = {1, 1, 1, 1}, .width = 2, .num_classes = 7};
    CHECK(sizes(config, 64) == Sizes{16, 2, 8, 4, 4, 8, 2, 16});
    CHECK(sizes(config, 33) == Sizes{9, 2, 5, 4, 3, 8, 2, 16});
    CHECK(sizes(config, 64, 0) == Sizes{16, 2, 8, 4, 4, 8, 2, 16});
    config.stem = ResNetStem::cifar;
    config.in_channels = 1;
    config.block = ResNetBlockKind::bottleneck;
    CHECK(sizes(config, 32) == Sizes{32, 8, 16, 16, 8, 32, 4, 64});
    CHECK(sizes(tiny(ResNetBlockKind::basic, ResNetShortcut::padding), 5) == Sizes{5, 4, 3, 8});
}

TEST_CASE("resnet: values and gradients against plain ops", "[resnet]") {
    for (const ResNetBlockKind block : {ResNetBlockKind::basic, ResNetBlockKind::bottleneck})
        for (const ResNetShortcut shortcut : {ResNetShortcut::projection, ResNetShortcut::padding}) {
            // The plain model cannot pad the shortcut of a bottleneck's first stage: its channels grow at
            // stride 1.
            if (block == ResNetBlockKind::bottleneck && shortcut == ResNetShortcut::padding) continue;
            manual_seed(2);
            nn::ResNet net(tiny(block, shortcut));
            test::disturb(net);
            net.to(float64);
            const Tensor x = images(4, 6, float64), y = labels(4);
            const Tensor logits = net(x);
            check_close(logits, Plain(net).logits(x), {1e-10, 1e-10});
            cross_entropy(logits, y).backward();
            Tensors gradients;
            for (const Tensor& p : net.parameters()) gradients.push_back(p.grad().clone());
            net.zero_grad();
            cross_entropy(Plain(net).logits(x), y).backward();
            std::size_t i = 0;
            for (const Tensor& p : net.parameters()) check_close(gradients[i++], p.grad(), {1e-8, 1e-10});
        }
}

TEST_CASE("resnet: padding takes every second pixel and adds zero channels", "[resnet]") {
    const NoGrad no_grad;
    // Blocks start as their shortcuts alone.
    ResNetConfig config = tiny(ResNetBlockKind::bottleneck, ResNetShortcut::padding);
    config.zero_init_residual = true;
    const nn::ResNet net(config);
    const Tensor x = relu(randn({2, 5, 5, 4}));
    const Tensor same = net.layer1[0](x);
    CHECK(doubles(same.slice(3, 0, 4)) == doubles(x));
    CHECK(doubles(sum(same.slice(3, 4, 16))) == std::vector<double>{0});
    const Tensor half = net.layer2[0](same);
    CHECK(half.shape() == Shape{2, 3, 3, 32});
    CHECK(doubles(half.slice(3, 0, 4)) == doubles(x.slice(1, 0, 5, 2).slice(2, 0, 5, 2)));
}

TEST_CASE("resnet: start values", "[resnet]") {
    manual_seed(4);
    const nn::ResNet net(nn::resnet_config(20));
    for (const auto& [name, p] : net.named_parameters()) {
        if (p.dim() != 4 || p.numel() < 2000) continue;
        const double expected = 2.0 / double(p.size(0) * p.size(1) * p.size(2));
        CHECK(mean(p * p).item<double>() == Approx(expected).epsilon(0.15));
    }
    ResNetConfig config = tiny();
    config.zero_init_residual = true;
    const nn::ResNet zero(config);
    for (const auto& [name, p] : zero.named_parameters())
        if (name.find("bn2.weight") != name.npos) CHECK(sum(p).item<double>() == 0);
    CHECK(zero.bn1.weight.to_vector<float>() == std::vector<float>(4, 1.f));
    config.block = ResNetBlockKind::bottleneck;
    const nn::ResNet bottleneck(config);
    CHECK(sum(bottleneck.layer1[0].bn3->weight).item<double>() == 0);
    CHECK(sum(bottleneck.layer1[0].bn2.weight).item<double>() == 4);
}

TEST_CASE("resnet: eval leaves the running statistics alone and sees each image by itself", "[resnet]") {
    manual_seed(6);
    nn::ResNet net(tiny());
    test::disturb(net);
    for (int i = 0; i < 3; ++i) static_cast<void>(net(images(4)));
    CHECK(net.layer2[0].bn2.num_batches_tracked.item<std::int64_t>() == 3);
    net.eval();
    const std::vector<double> before = all_values(net.named_buffers());
    const NoGrad no_grad;
    const Tensor x = images(4), together = net(x);
    check_close(net(x.slice(0, 2, 3)), together.slice(0, 2, 3), {1e-5, 1e-5});
    CHECK(all_values(net.named_buffers()) == before);
    // A copy has its own training mode.
    nn::ResNet copy = net;
    copy.train();
    CHECK_FALSE(net.layer2[0].downsample->norm.training());
    CHECK(copy.layer2[0].downsample->norm.training());
}

TEST_CASE("resnet: checkpointed blocks give the same gradients and running statistics", "[resnet]") {
    std::vector<std::size_t> held;  // bytes between forward and backward
    const auto run = [&](bool checkpointed, bool mixed) {
        manual_seed(8);
        nn::ResNet net(tiny(ResNetBlockKind::bottleneck));
        net.checkpoint_blocks = checkpointed;
        const std::size_t before = memory_stats(cpu_device).allocated;
        Tensor loss;
        {
            const amp::Autocast scope({.dtype = bfloat16, .enabled = mixed});
            loss = cross_entropy(net(images(4)), labels(4));
        }
        held.push_back(memory_stats(cpu_device).allocated - before);
        loss.backward();
        std::vector<double> values = all_values(net.named_buffers());
        for (const Tensor& p : net.parameters())
            for (const double g : doubles(p.grad())) values.push_back(g);
        return values;
    };
    CHECK(run(true, false) == run(false, false));
    CHECK(run(true, true) == run(false, true));
    REQUIRE(held.size() == 4);
    std::sort(held.begin(), held.end());
    CHECK(2 * held[1] < held[2]);  // both checkpointed runs hold less than half of the others
}

TEST_CASE("resnet: a step whose forward pass overflows leaves the running statistics finite",
          "[resnet][amp]") {
    nn::ResNet net(tiny());
    optim::SGD optimizer(net.parameters(), {.lr = 0.1});
    amp::GradScaler scaler;
    const auto step = [&](double factor) {
        Tensor loss;
        {
            const amp::Autocast scope({.dtype = float16});
            loss = cross_entropy(net(images(4) * factor), labels(4));
        }
        scaler.scale(loss).backward();
        const amp::StepResult result = scaler.step(optimizer);
        scaler.update();
        optimizer.zero_grad();
        return result.skipped();
    };
    CHECK_FALSE(step(1));
    const std::vector<double> before = all_values(net.named_buffers());
    CHECK(step(1e6));
    CHECK(all_values(net.named_buffers()) == before);
    CHECK_FALSE(step(1));
}

namespace {

struct Arithmetic {
    const char* name;
    bool preset;
    Dtype low;
    amp::Choice keep;
    Dtype conv, norm;  // of the parameters
};

// Losses of so many steps on one batch.
std::vector<double> losses_of(const Arithmetic& a, nn::ResNet& net, int steps) {
    optim::SGD optimizer(net.parameters(), {.lr = 0.05, .momentum = 0.9});
    std::optional<amp::Handle> handle;
    if (a.preset)
        handle = amp::initialize(
            net, optimizer, {.opt_level = std::string(a.name).substr(0, 2), .keep_batchnorm_fp32 = a.keep});
    amp::GradScaler scaler(
        {.enabled = !a.preset && a.low == float16 && a.conv == float32 && std::string(a.name) == "fp16"});
    std::vector<double> losses;
    for (int i = 0; i < steps; ++i) {
        Tensor loss;
        if (handle) {
            loss = cross_entropy(handle->forward(net, images(12)), labels(12));
            handle->scale_loss(loss, optimizer, [](const Tensor& scaled) { scaled.backward(); });
            optimizer.step();
        } else {
            {
                const amp::Autocast scope({.dtype = a.low, .enabled = std::string(a.name) != "fp32"});
                loss = cross_entropy(net(images(12)), labels(12));
            }
            scaler.scale(loss).backward();
            scaler.step(optimizer);
            scaler.update();
        }
        optimizer.zero_grad();
        losses.push_back(loss.item<double>());
    }
    return losses;
}

}  // namespace

TEST_CASE("resnet: every precision and preset trains", "[resnet][amp]") {
    using amp::Choice;
    const Arithmetic all[] = {{"fp32", false, float16, Choice::preset, float32, float32},
                              {"bf16", false, bfloat16, Choice::preset, float32, float32},
                              {"fp16", false, float16, Choice::preset, float32, float32},
                              {"O0", true, float16, Choice::preset, float32, float32},
                              {"O1", true, float16, Choice::preset, float32, float32},
                              {"O2", true, float16, Choice::preset, float16, float32},
                              {"O2 without float32 norms", true, float16, Choice::no, float16, float16},
                              {"O3", true, float16, Choice::preset, float16, float16},
                              {"O3 with float32 norms", true, float16, Choice::yes, float16, float32}};
    std::vector<double> reference;
    for (const Arithmetic& a : all) {
        INFO(a.name);
        manual_seed(9);
        nn::ResNet net(tiny());
        const std::vector<double> losses = losses_of(a, net, 20);
        if (reference.empty()) reference = losses;
        CHECK(losses.back() < 0.7 * losses.front());
        CHECK(losses[0] == Approx(reference[0]).epsilon(0.02));
        CHECK(net.layer1[0].conv1.weight.dtype() == a.conv);
        CHECK(net.layer1[0].bn1.weight.dtype() == a.norm);
        CHECK(net.layer1[0].bn1.running_mean.dtype() == a.norm);
        CHECK(net.bn1.num_batches_tracked.dtype() == int64);
        CHECK(net.bn1.num_batches_tracked.item<std::int64_t>() == 20);
    }
}

TEST_CASE("resnet: errors", "[resnet]") {
    ResNetConfig config = tiny();
    const auto refuses = [](const ResNetConfig& c, const char* text) {
        CHECK_THROWS_WITH(nn::ResNet(c), Contains(text));
    };
    config.layers = {};
    refuses(config, "layers names 0 stages; there must be one to four");
    config.layers = {1, 1, 1, 1, 1};
    refuses(config, "layers names 5 stages");
    config.layers = {1, 0};
    refuses(config, "a stage's number of blocks is 0");
    config = tiny();
    config.width = 0;
    refuses(config, "ResNet: width is 0; it must be positive");
    config = tiny();
    config.num_classes = -1;
    refuses(config, "num_classes is -1");

    const nn::ResNet net(tiny());
    CHECK_THROWS_WITH(
        net(zeros({2, 3, 8, 8})),
        Contains("must be [batch, height, width, 3], not [2, 3, 8, 8]; x.permute({0, 2, 3, 1})"));
    CHECK_THROWS_WITH(net(zeros({8, 8, 3})), Contains("not [8, 8, 3]"));
    CHECK_THROWS_WITH(net(Tensor()), Contains("must be [batch, height, width, 3]"));
    CHECK(net(zeros({2, 8, 8, 3})).shape() == Shape{2, 3});  // usable after errors
}
