// The code of docs/guide/models.md: each block there is a case here.
#include <catch2/catch.hpp>

#include "mezzo/mezzo.h"
#include "mezzo/models/resnet.h"
#include "tests/support/folder.h"

namespace mz = mezzo;

TEST_CASE("resnet document: in a program, and files", "[resnet]") {
    const mz::NoGrad no_grad;
    const mz::Tensor images = mz::randn({2, 16, 16, 3});
    // begin
    mz::nn::ResNetConfig config = mz::nn::resnet_config(50);
    config.stem = mz::nn::ResNetStem::cifar;
    config.num_classes = 10;
    mz::nn::ResNet net(config);
    const mz::Tensor logits = net(images);            // images [batch, height, width, 3]
    const mz::Tensors stages = net.features(images);  // what a detector builds upon
    // end
    CHECK(logits.shape() == mz::Shape{2, 10});
    REQUIRE(stages.size() == 4);
    CHECK(stages[1].shape() == mz::Shape{2, 8, 8, 512});
    CHECK(net.state_dict().size() == 320);

    const mz::test::Folder folder;
    const std::string path = folder.file("resnet50.safetensors");
    mz::io::save_safetensors(path, mz::io::with_prefix(net.state_dict(), "module."));
    const float before = net.conv1.weight.to_vector<float>()[5];
    net.conv1.weight.zero_();
    // begin
    const auto rename = [](const std::string& name) { return mz::io::resnet_name(name); };
    mz::io::load_weights(net, mz::io::load_state_dict_file(path), {.rename = rename});
    // end
    CHECK(net.conv1.weight.to_vector<float>()[5] == before);
    // begin
    net.eval();
    // 53 batch norms
    const std::int64_t folded = mz::nn::fuse_batch_norms(net, [&] { return mz::Tensors{net(images)}; });
    // end
    CHECK(folded == 53);
}
