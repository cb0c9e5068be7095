// Residual networks (He et al., arXiv 1512.03385) with torchvision's layout and names, for ImageNet's sizes
// of images and for CIFAR's.
//
//   nn::ResNet resnet(nn::resnet_config(50));
//   io::load_weights(resnet, io::load_state_dict_file("resnet50.safetensors"));
//   resnet.eval();
//   y = resnet(x);  // [32, 224, 224, 3] -> [32, 1000]
#pragma once

#include <string>
#include <string_view>

#include <cstdint>
#include <optional>
#include <vector>

#include "mezzo/conv_layers.h"
#include "mezzo/module.h"
#include "mezzo/nn.h"
#include "mezzo/norm_layers.h"

#pragma GCC visibility push(default)

namespace mezzo::nn {

enum class ResNetBlockKind : std::uint8_t {
    basic,      // two 3x3 convolutions
    bottleneck  // 1x1, 3x3 with the stride, and 1x1 with four times the channels
};
enum class ResNetStem : std::uint8_t {
    imagenet,  // 7x7 convolution with stride 2, and a 3x3 max-pool with stride 2: a quarter of the resolution
    cifar      // 3x3 convolution with stride 1: small images keep their resolution
};
// Shortcut of a block whose input has another shape than its result.
enum class ResNetShortcut : std::uint8_t {
    projection,  // a 1x1 convolution and a batch norm: option B of the paper, and torchvision's
    padding      // without parameters: every second pixel, and zeros for the new channels: option A
};

struct ResNetConfig {
    ResNetBlockKind block = ResNetBlockKind::bottleneck;
    std::vector<std::int64_t> layers = {3, 4, 6, 3};  // blocks of each stage; one to four stages
    // channels of the first stage, before a bottleneck's factor; each next doubles it
    std::int64_t width = 64;
    ResNetStem stem = ResNetStem::imagenet;
    ResNetShortcut shortcut = ResNetShortcut::projection;
    std::int64_t in_channels = 3, num_classes = 1000;
    // The last batch norm of each block starts with weight 0, so that the block starts as its shortcut.
    bool zero_init_residual = false;
};
// Configuration of a published network by its number of layers. 18, 34, 50 and 101 are those for ImageNet. 8,
// 20 and 56 are those of the paper's section 4.2 for CIFAR-10: 10 classes, three stages of 16, 32 and 64
// channels, CIFAR's stem, shortcuts by padding. Throws Error(value) for other numbers.
[[nodiscard]] ResNetConfig resnet_config(std::int64_t depth);

// The shortcut by projection. Its fields have the names of torchvision's Sequential: "0" and "1".
class ResNetDownsample : public Module {
public:
    ResNetDownsample(std::int64_t in_channels, std::int64_t out_channels, std::int64_t stride);
    [[nodiscard]] Tensor operator()(const Tensor& x) const { return norm(conv(x)); }
    const char* type_name() const override { return "ResNetDownsample"; }
    void visit_fields(FieldVisitor& visitor) override;

    Conv2d conv;
    BatchNorm2d norm;
};

// relu(f(x) + shortcut(x)), with f of two or three convolutions.
class ResNetBlock : public Module {
public:
    // channels: those of the 3x3 convolutions.
    ResNetBlock(std::int64_t in_channels, std::int64_t channels, std::int64_t stride,
                const ResNetConfig& config);
    [[nodiscard]] Tensor operator()(const Tensor& x) const;
    const char* type_name() const override { return conv3 ? "Bottleneck" : "BasicBlock"; }
    void visit_fields(FieldVisitor& visitor) override;
    [[nodiscard]] std::int64_t out_channels() const;

    Conv2d conv1;
    BatchNorm2d bn1;
    Conv2d conv2;
    BatchNorm2d bn2;
    std::optional<Conv2d> conv3;  // this and the next in a bottleneck alone
    std::optional<BatchNorm2d> bn3;
    std::optional<ResNetDownsample> downsample;
    std::int64_t stride;

private:
    Tensor shortcut(const Tensor& x) const;
};

// Convolutions start as N(0, 2 / fan_out) as in torchvision, batch norms as the identity, the classifier as
// Linear does. Throws Error(value) for sizes that do not fit together.
class ResNet : public Module {
public:
    explicit ResNet(const ResNetConfig& config);
    // Images [batch, height, width, in_channels] -> logits [batch, num_classes]. Throws Error(shape) for
    // inputs of another shape.
    [[nodiscard]] Tensor operator()(const Tensor& images) const;
    // The results of the stages, largest first, as inputs of a detector or a segmentation network.
    [[nodiscard]] Tensors features(const Tensor& images) const;
    // Logits from the mean over all pixels of the last stage's result.
    [[nodiscard]] Tensor classify(const Tensor& features) const;

    ResNetConfig config;
    Conv2d conv1;
    BatchNorm2d bn1;
    std::vector<ResNetBlock> layer1, layer2, layer3,
        layer4;  // the stages; without blocks where there is none
    Linear fc;   // [num_classes, channels of the last stage]
    // Activation checkpointing: backward recomputes the activations inside every block. Less memory, more
    // time.
    bool checkpoint_blocks = false;
    MEZZO_MODULE(ResNet, conv1, bn1, layer1, layer2, layer3, layer4, fc)

private:
    Tensor stem(const Tensor& images) const;
    Tensor run(const std::vector<ResNetBlock>& stage, Tensor x) const;
};

}  // namespace mezzo::nn

namespace mezzo::io {

// The name of a ResNet weight in mezzo's nn::ResNet, which has torchvision's names: those of other programs
// for the shortcut by projection (shortcut.0, shortcut.1 -> downsample.0, downsample.1) and the classifier
// (linear -> fc) are changed, and "module.", which PyTorch's DataParallel adds, is taken off.
[[nodiscard]] std::string resnet_name(std::string_view name);

}  // namespace mezzo::io

#pragma GCC visibility pop
