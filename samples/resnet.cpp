// Trains a ResNet on CIFAR-10, on folders of images or on Fashion-MNIST, in float32, with mezzo's mixed
// precision or with a preset O0 to O3. samples/resnet holds its parts.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "program.h"
#include "resnet/images.h"
#include "resnet/trainer.h"
#include "training/places.h"

namespace mz = mezzo;
using namespace resnet;

namespace {

void check_places(const Options& o) {
    if (!o.save.empty()) training::check_file("--save", o.save);
    if (!o.checkpoint.empty()) training::check_file("--checkpoint", o.checkpoint);
    if (!o.log.empty()) training::check_file("--log", o.log);
    if (o.resume && std::filesystem::exists(o.checkpoint)) mz::io::SafeTensors header(o.checkpoint);
}

mz::nn::ResNetConfig config_of(const Options& o, const ImageFormat& format) {
    std::int64_t depth = 0;
    program::parse_number(std::string_view(o.model).substr(std::string_view("resnet").size()), depth);
    mz::nn::ResNetConfig config = mz::nn::resnet_config(depth);
    config.in_channels = format.channels;
    config.num_classes = std::int64_t(format.classes.size());
    const bool cifar = o.stem.empty() ? format.size <= 64 : o.stem == "cifar";
    config.stem = cifar ? mz::nn::ResNetStem::cifar : mz::nn::ResNetStem::imagenet;
    if (!o.shortcut.empty())
        config.shortcut =
            o.shortcut == "padding" ? mz::nn::ResNetShortcut::padding : mz::nn::ResNetShortcut::projection;
    return config;
}

// Weights for other classes leave the last layer as it is when there is a training to follow.
void load_weights(const Options& o, mz::nn::ResNet& model) {
    const mz::io::LoadReport report =
        mz::io::load_weights(model, mz::io::load_state_dict_file(o.weights),
                             {.rename = [](const std::string& name) { return mz::io::resnet_name(name); },
                              .strict = o.epochs == 0,
                              .ignore_mismatched = o.epochs > 0});
    fmt::print("{}\n{}\n", o.weights, report.to_string());
    if (report.loaded.empty()) throw std::runtime_error(o.weights + ": holds no weights of this model");
}

void print_header(const Options& o, const Images& images, const mz::nn::ResNet& model) {
    std::int64_t parameters = 0;
    for (const mz::Tensor& p : model.parameters()) parameters += p.numel();
    fmt::print("{} on {}: {} images of {} x {}, {} for tests, {} classes\n", o.model, images.name,
               images.train_count, images.format.size, images.format.size, images.test_count,
               images.format.classes.size());
    fmt::print("{:.2f} M parameters, {}, batch {}, seed {}\n{}\n", double(parameters) * 1e-6, o.arithmetic(),
               o.batch, o.seed, mz::hardware_name(o.device));
    std::fflush(stdout);
}

void predict(const Options& o, const ImageFormat& format, mz::nn::ResNet& model) {
    for (const std::string& file : o.predict) {
        const mz::Tensor logits = logits_of(o, model, read_one(file, format).to(o.device));
        const std::vector<double> p = mz::softmax(logits).to_vector<double>();
        const auto best = std::max_element(p.begin(), p.end());
        fmt::print("{}\t{:.4f}\t{}\n", format.classes[std::size_t(best - p.begin())], *best, file);
    }
}

// What --predict names is read before the training and not after it.
void check_readable(const Options& o, const ImageFormat& format) {
    for (const std::string& file : o.predict) static_cast<void>(read_one(file, format));
}

void run(const Options& o) {
    mz::manual_seed(o.seed);
    check_places(o);
    ImageFormat format;
    if (!o.weights.empty()) format = format_of(mz::io::SafeTensors(o.weights).metadata());
    std::optional<Images> images;
    if (o.epochs > 0 || format.classes.empty()) {
        images = load_images(o);
        format = images->format;
    }
    check_readable(o, format);
    mz::nn::ResNet model(config_of(o, format));
    if (!o.weights.empty()) load_weights(o, model);
    model.to(o.device);
    if (o.epochs > 0) {
        print_header(o, *images, model);
        train(o, settings_of(o, *images, model), *images, model);
    }
    if (!o.save.empty()) mz::io::save_safetensors(o.save, model.state_dict(), metadata_of(format));
    predict(o, format, model);
}

}  // namespace

int main(int argc, char** argv) {
    return program::run("resnet", [&] {
        Options options;
        const int code = parse_options(argc, argv, options);
        if (code < 0) run(options);
        return std::max(code, 0);
    });
}
