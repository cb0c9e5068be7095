#include "resnet/architecture.h"

#include <algorithm>
#include <stdexcept>

#include <fmt/format.h>

#include "program.h"

namespace mz = mezzo;

namespace resnet {

namespace {

// A value that this program does not know was written by another program, and is ignored.
void take(const char* option, std::string& value, const std::vector<std::string>& known, const Options& o,
          const mz::io::Metadata& metadata) {
    const std::string key = std::string(option).substr(2);
    for (const auto& [name, stored] : metadata) {
        if (name != key || std::find(known.begin(), known.end(), stored) == known.end()) continue;
        if (!value.empty() && value != stored)
            throw std::runtime_error(
                fmt::format("{}: {}, but the weights in {} are of {}", option, value, o.weights, stored));
        value = stored;
    }
}

}  // namespace

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

mz::io::Metadata metadata_of(const std::string& model, const mz::nn::ResNetConfig& config) {
    return {{"model", model},
            {"stem", config.stem == mz::nn::ResNetStem::cifar ? "cifar" : "imagenet"},
            {"shortcut", config.shortcut == mz::nn::ResNetShortcut::padding ? "padding" : "projection"}};
}

void take_stored(Options& o, const mz::io::Metadata& metadata) {
    take("--model", o.model, model_names(), o, metadata);
    take("--stem", o.stem, {"cifar", "imagenet"}, o, metadata);
    take("--shortcut", o.shortcut, {"projection", "padding"}, o, metadata);
    if (o.model.empty()) o.model = "resnet20";
}

}  // namespace resnet
