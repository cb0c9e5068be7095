#include "mezzo/models/resnet.h"

#include "core/enumerators.h"
#include "mezzo/autograd.h"
#include "mezzo/fusion.h"
#include "mezzo/image_ops.h"
#include "mezzo/init.h"
#include "mezzo/module_scope.h"

namespace mezzo::nn {

namespace {

constexpr std::int64_t bottleneck_factor = 4;

Conv2d convolution(std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t stride = 1) {
    Conv2d conv(in, out, kernel, {.stride = stride, .padding = kernel / 2, .bias = false});
    init::kaiming_normal_(conv.weight,
                          {.mode = init::FanMode::fan_out, .nonlinearity = init::Nonlinearity::relu});
    return conv;
}

const ResNetConfig& checked(const ResNetConfig& c) {
    const auto positive = [](const char* name, std::int64_t n) {
        check(n > 0, ErrorKind::value, "ResNet: ", name, " is ", n, "; it must be positive");
    };
    positive("width", c.width);
    positive("in_channels", c.in_channels);
    positive("num_classes", c.num_classes);
    check_enumerator("ResNet", "block", c.block, ResNetBlockKind::bottleneck);
    check_enumerator("ResNet", "stem", c.stem, ResNetStem::cifar);
    check_enumerator("ResNet", "shortcut", c.shortcut, ResNetShortcut::padding);
    check(!c.layers.empty() && c.layers.size() <= 4, ErrorKind::value, "ResNet: layers names ",
          c.layers.size(), " stages; there must be one to four");
    for (const std::int64_t blocks : c.layers) positive("a stage's number of blocks", blocks);
    return c;
}

std::int64_t channels_after(const ResNetConfig& c, std::size_t stage) {
    return (c.width << stage) * (c.block == ResNetBlockKind::bottleneck ? bottleneck_factor : 1);
}

// Stages count from 0; those after the first begin with stride 2.
std::vector<ResNetBlock> make_stage(const ResNetConfig& c, std::size_t stage) {
    std::vector<ResNetBlock> blocks;
    if (stage >= c.layers.size()) return blocks;
    std::int64_t in = stage == 0 ? c.width : channels_after(c, stage - 1);
    for (std::int64_t i = 0; i < c.layers[stage]; ++i) {
        blocks.emplace_back(in, c.width << stage, stage > 0 && i == 0 ? 2 : 1, c);
        in = channels_after(c, stage);
    }
    return blocks;
}

}  // namespace

ResNetConfig resnet_config(std::int64_t depth) {
    using enum ResNetBlockKind;
    const auto cifar = [](std::int64_t blocks) {
        return ResNetConfig{.block = basic,
                            .layers = {blocks, blocks, blocks},
                            .width = 16,
                            .stem = ResNetStem::cifar,
                            .shortcut = ResNetShortcut::padding,
                            .num_classes = 10};
    };
    switch (depth) {
        case 8:
        case 20:
        case 56:
            return cifar((depth - 2) / 6);
        case 18:
            return {.block = basic, .layers = {2, 2, 2, 2}};
        case 34:
            return {.block = basic, .layers = {3, 4, 6, 3}};
        case 50:
            return {.layers = {3, 4, 6, 3}};
        case 101:
            return {.layers = {3, 4, 23, 3}};
        default:
            fail(ErrorKind::value, "resnet_config: no network of ", depth,
                 " layers; there are 18, 34, 50, 101, and CIFAR's 8, 20, 56");
    }
}

ResNetDownsample::ResNetDownsample(std::int64_t in_channels, std::int64_t out_channels, std::int64_t stride)
    : conv(convolution(in_channels, out_channels, 1, stride)), norm(out_channels) {}

void ResNetDownsample::visit_fields(FieldVisitor& visitor) {
    visitor.module("0", conv);
    visitor.module("1", norm);
}

ResNetBlock::ResNetBlock(std::int64_t in_channels, std::int64_t channels, std::int64_t block_stride,
                         const ResNetConfig& config)
    : conv1(config.block == ResNetBlockKind::basic ? convolution(in_channels, channels, 3, block_stride)
                                                   : convolution(in_channels, channels, 1)),
      bn1(channels),
      conv2(convolution(channels, channels, 3, config.block == ResNetBlockKind::basic ? 1 : block_stride)),
      bn2(channels),
      stride(block_stride) {
    if (config.block == ResNetBlockKind::bottleneck) {
        conv3 = convolution(channels, channels * bottleneck_factor, 1);
        bn3.emplace(channels * bottleneck_factor);
    }
    const bool other_shape = stride != 1 || in_channels != out_channels();
    if (other_shape && config.shortcut == ResNetShortcut::projection)
        downsample.emplace(in_channels, out_channels(), stride);
    if (config.zero_init_residual) {
        const NoGrad plain;
        (bn3 ? *bn3 : bn2).weight.zero_();
    }
}

std::int64_t ResNetBlock::out_channels() const { return (bn3 ? *bn3 : bn2).num_features; }

void ResNetBlock::visit_fields(FieldVisitor& visitor) {
    visitor.module("conv1", conv1);
    visitor.module("bn1", bn1);
    visitor.module("conv2", conv2);
    visitor.module("bn2", bn2);
    if (conv3) visitor.module("conv3", *conv3);
    if (bn3) visitor.module("bn3", *bn3);
    if (downsample) visitor.module("downsample", *downsample);
}

Tensor ResNetBlock::shortcut(const Tensor& x) const {
    if (downsample) return (*downsample)(x);
    Tensor y = x;
    if (stride != 1) y = y.slice(1, 0, y.size(1), stride).slice(2, 0, y.size(2), stride);
    const std::int64_t added = out_channels() - x.size(3);
    return added > 0 ? pad(y, {{.dim = 3, .before = 0, .after = added}}) : y;
}

Tensor ResNetBlock::operator()(const Tensor& input) const {
    const ModuleScope here(*this);
    const auto run = [this](const Tensor& x) {
        const Tensor y = conv_bn(conv1, bn1, x, {.relu = true});
        if (!conv3) return conv_bn(conv2, bn2, y, {.relu = true, .residual = shortcut(x)});
        return conv_bn(*conv3, *bn3, conv_bn(conv2, bn2, y, {.relu = true}),
                       {.relu = true, .residual = shortcut(x)});
    };
    return with_hooks(run, input);
}

ResNet::ResNet(const ResNetConfig& c)
    : config(checked(c)),
      conv1(c.stem == ResNetStem::cifar ? convolution(c.in_channels, c.width, 3)
                                        : convolution(c.in_channels, c.width, 7, 2)),
      bn1(c.width),
      layer1(make_stage(c, 0)),
      layer2(make_stage(c, 1)),
      layer3(make_stage(c, 2)),
      layer4(make_stage(c, 3)),
      fc(channels_after(c, c.layers.size() - 1), c.num_classes) {}

Tensor ResNet::stem(const Tensor& images) const {
    check(images.defined() && images.dim() == 4 && images.size(3) == config.in_channels, ErrorKind::shape,
          "ResNet: images must be [batch, height, width, ", config.in_channels, "], not ",
          images.defined() ? images.shape() : Shape{},
          "; x.permute({0, 2, 3, 1}) makes them of [batch, channels, height, width]");
    const Tensor x = conv_bn(conv1, bn1, images, {.relu = true});
    if (config.stem == ResNetStem::cifar) return x;
    return max_pool2d(x, {.kernel_size = 3, .stride = 2, .padding = 1});
}

Tensor ResNet::run(const std::vector<ResNetBlock>& stage, Tensor x) const {
    for (const ResNetBlock& block : stage) {
        if (!checkpoint_blocks) {
            x = block(x);
            continue;
        }
        const auto segment = [block](const Tensors& in) { return Tensors{block(in[0])}; };
        x = autograd::checkpoint(segment, {x})[0];
    }
    return x;
}

Tensors ResNet::features(const Tensor& images) const {
    Tensors results{run(layer1, stem(images))};
    for (const std::vector<ResNetBlock>* const stage : {&layer2, &layer3, &layer4})
        if (!stage->empty()) results.push_back(run(*stage, results.back()));
    return results;
}

Tensor ResNet::classify(const Tensor& features) const {
    return fc(adaptive_avg_pool2d(features, 1).flatten(1));
}

Tensor ResNet::operator()(const Tensor& images) const {
    const ModuleScope here(*this);
    return with_hooks(
        [this](const Tensor& x) {
            return classify(run(layer4, run(layer3, run(layer2, run(layer1, stem(x))))));
        },
        images);
}

}  // namespace mezzo::nn

namespace mezzo::io {

std::string resnet_name(std::string_view name) {
    if (name.starts_with("module.")) name.remove_prefix(7);
    std::string result(name);
    if (name.starts_with("linear.")) result.replace(0, 6, "fc");
    if (const std::size_t at = result.find(".shortcut."); at != result.npos)
        result.replace(at + 1, 8, "downsample");
    return result;
}

}  // namespace mezzo::io
