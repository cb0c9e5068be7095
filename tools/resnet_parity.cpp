// Writes the data that tools/torch_resnet.py compares with PyTorch: weights, batches, and mezzo's hidden
// states, gradients, losses, running statistics and skipped steps on them. tools/resnet_parity.py runs both
// sides and prints a table.
#include <fmt/format.h>

#include <string>
#include <vector>

#include "mezzo/data/images.h"
#include "mezzo/data/loader.h"
#include "mezzo/models/resnet.h"
#include "tools/parity.h"

namespace mz = mezzo;

namespace {

struct Settings : parity::Settings {
    std::string stem, data;
    std::int64_t depth = 20, batch = 128, steps = 1, size = 32;
    double lr = 0.05, momentum = 0.9, weight_decay = 5e-4, scale = 65536;
    std::uint64_t seed = 1;
    bool values = true;

    mz::Dtype dtype() const { return precision == "fp64" ? mz::float64 : mz::float32; }
};

const std::vector<float> mean{0.4914f, 0.4822f, 0.4465f}, stddev{0.2023f, 0.1994f, 0.2010f};

mz::nn::ResNetConfig config_of(const Settings& s) {
    mz::nn::ResNetConfig config = mz::nn::resnet_config(s.depth);
    config.num_classes = 10;
    if (!s.stem.empty())
        config.stem = s.stem == "cifar" ? mz::nn::ResNetStem::cifar : mz::nn::ResNetStem::imagenet;
    return config;
}

// Noise images whose brightest channel is the class modulo 3, so that there is something to learn.
mz::StateDict random_batches(const Settings& s) {
    const mz::Tensor labels = mz::randint(0, 10, {s.steps, s.batch});
    std::vector<std::int64_t> bright;
    for (const std::int64_t label : labels.to_vector<std::int64_t>()) bright.push_back(label % 3);
    const mz::Tensor channel = mz::Tensor::from(bright, {s.steps, s.batch, 1, 1, 1});
    const mz::Tensor noise = mz::randint(0, 156, {s.steps, s.batch, s.size, s.size, 3});
    const mz::Tensor images = noise + mz::cast(mz::eq(channel, mz::arange(3)), mz::int64) * 100;
    return {{"images", mz::cast(images, mz::uint8)}, {"labels", labels}};
}

// Returns the first batches of CIFAR-10 files, in an order drawn once.
mz::StateDict file_batches(const Settings& s) {
    mz::data::DataLoader loader(mz::data::cifar10({.files = {s.data}}),
                                {.batch_size = s.batch, .shuffle = true, .drop_last = true, .seed = s.seed});
    mz::Tensors images, labels;
    while (std::int64_t(images.size()) < s.steps)
        for (const mz::data::Batch& batch : loader) {
            if (std::int64_t(images.size()) == s.steps) break;
            images.push_back(mz::cast(batch.x * 255 + 0.5, mz::uint8));
            labels.push_back(batch.y);
        }
    return {{"images", mz::stack(images)}, {"labels", mz::stack(labels)}};
}

void write_settings(const Settings& s, const mz::nn::ResNetConfig& config) {
    const std::string text = fmt::format(
        R"({{"depth": {}, "stem": "{}", "classes": 10, "shortcut": "{}", "lr": {}, "momentum": {}, "weight_decay": {}, "scale": {}, "mean": [{}], "stddev": [{}]}})",
        s.depth, config.stem == mz::nn::ResNetStem::cifar ? "cifar" : "imagenet",
        config.shortcut == mz::nn::ResNetShortcut::padding ? "A" : "B", s.lr, s.momentum, s.weight_decay,
        s.scale, fmt::join(mean, ", "), fmt::join(stddev, ", "));
    parity::write_text(s.path("settings.json"), text);
}

mz::data::Batch batch_of(const Settings& s, const mz::StateDict& batches, std::int64_t step) {
    // In float32 as in PyTorch, whatever dtype is used afterwards.
    const mz::Tensor pixels = parity::entry(batches, "images")[step].to(mz::float32) / 255.0;
    const mz::Tensor x = (pixels - mz::Tensor::from(mean, {3})) / mz::Tensor::from(stddev, {3});
    return {x.to(s.dtype()).to(s.device), parity::entry(batches, "labels")[step].contiguous().to(s.device)};
}

// Returns the results of the stages, logits, loss and gradients of the first batch, in training mode.
mz::StateDict values(const Settings& s, mz::nn::ResNet& net, const mz::data::Batch& batch) {
    mz::StateDict results;
    mz::Tensor loss;
    {
        const mz::amp::Autocast scope(s.autocast());
        const mz::Tensors stages = net.features(batch.x);
        for (std::size_t i = 0; i < stages.size(); ++i)
            results.emplace_back("stage" + std::to_string(i + 1), stages[i].detach());
        const mz::Tensor logits = net.classify(stages.back());
        loss = mz::cross_entropy(logits, batch.y);
        results.emplace_back("logits", logits.detach());
        results.emplace_back("loss", loss.detach());
    }
    const double scale = 1024;  // float16 needs it, float32 is not affected
    (loss * scale).backward();
    // A gradient has the memory order of its parameter; files have PyTorch's order.
    for (const auto& [name, p] : net.named_parameters()) {
        const mz::Tensor gradient = (p.grad() / scale).detach();
        results.emplace_back("grad." + name, p.dim() == 4 ? gradient.permute({0, 3, 1, 2}) : gradient);
    }
    net.zero_grad();
    return results;
}

// Returns losses and skipped steps of training on the batches, and the running statistics after three of
// them.
mz::StateDict train(const Settings& s, mz::nn::ResNet& net, const mz::StateDict& batches) {
    mz::optim::SGD optimizer(
        net.named_parameters(),
        {.lr = s.lr, .momentum = s.momentum, .weight_decay = s.weight_decay, .nesterov = s.momentum > 0});
    mz::amp::GradScaler scaler({.init_scale = s.scale, .enabled = s.precision == "fp16"});
    std::vector<double> losses;
    std::vector<std::int64_t> skipped;
    mz::StateDict results;
    for (std::int64_t step = 0; step < s.steps; ++step) {
        const mz::data::Batch batch = batch_of(s, batches, step);
        mz::Tensor loss;
        {
            const mz::amp::Autocast scope(s.autocast());
            loss = mz::cross_entropy(net(batch.x), batch.y);
        }
        const std::int64_t before = optimizer.skipped_steps();
        scaler.scale(loss).backward();
        scaler.step(optimizer);
        scaler.update();
        optimizer.zero_grad();
        losses.push_back(loss.item<double>());
        skipped.push_back(optimizer.skipped_steps() - before);
        if (step == 2)
            for (const auto& [name, buffer] : net.named_buffers())
                results.emplace_back("running." + name, buffer.detach().clone());
    }
    results.emplace_back("losses", mz::Tensor::from(losses, {s.steps}));
    results.emplace_back("skipped", mz::Tensor::from(skipped, {s.steps}));
    return results;
}

void run(const Settings& s) {
    mz::manual_seed(s.seed);
    mz::nn::ResNet net(config_of(s));
    const mz::StateDict batches = parity::weights_and_batches(s, net, [&] {
        write_settings(s, net.config);
        return s.data.empty() ? random_batches(s) : file_batches(s);
    });
    net.to(s.dtype());
    net.to(s.device);
    mz::StateDict results;
    if (s.values) {
        results = values(s, net, batch_of(s, batches, 0));
        // The batch has changed the running statistics.
        mz::io::load_weights(net, mz::io::load_state_dict_file(s.path("weights.safetensors")),
                             {.strict = true});
    }
    if (s.steps > 1)
        for (auto& [name, value] : train(s, net, batches)) results.emplace_back(name, value);
    mz::io::save_safetensors(s.path("mezzo_" + s.precision + ".safetensors"), results);
}

void add_options(CLI::App& app, Settings& s) {
    app.add_option("--precision", s.precision)->check(CLI::IsMember({"fp64", "fp32", "bf16", "fp16"}));
    app.add_option("--depth", s.depth, "8, 18, 20, 34, 50, 56 or 101")
        ->transform(program::in_range<std::int64_t>(1, 1000));
    app.add_option("--stem", s.stem, "default: that of the depth")
        ->check(CLI::IsMember({"cifar", "imagenet"}));
    app.add_option("--data", s.data, "a binary file of CIFAR-10; default: noise")->check(CLI::ExistingFile);
    app.add_option("--size", s.size, "height and width of images of noise")
        ->transform(program::in_range<std::int64_t>(1, 1024));
    const auto size = program::in_range<std::int64_t>(1, 1 << 20);
    app.add_option("--batch", s.batch)->transform(size);
    app.add_option("--steps", s.steps, "batches to make; more than one are trained on")->transform(size);
    app.add_option("--seed", s.seed, "of the weights and the batches")->transform(program::any_seed());
    app.add_option("--lr", s.lr, "of training")->transform(program::learning_rate());
    app.add_option("--momentum", s.momentum)->transform(program::in_range(0.0, 1.0));
    app.add_option("--weight-decay", s.weight_decay)->transform(program::in_range(0.0, 1.0));
    app.add_option("--scale", s.scale, "fp16: the first loss scale")->transform(program::in_range(1.0, 1e30));
    app.add_option("--values", s.values, "write hidden states and gradients of the first batch");
    app.add_option("--device", s.device_name, "cpu, cuda or cuda:N");
}

}  // namespace

int main(int argc, char** argv) {
    Settings s;
    return parity::run_program(
        "resnet_parity", "Writes weights, batches and results of a ResNet for a comparison with PyTorch.", s,
        argc, argv, [&](CLI::App& app) { add_options(app, s); }, [&] { run(s); });
}
