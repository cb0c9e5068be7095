// Code of docs/guide/images.md: a network on files of images.
#include <catch2/catch.hpp>

#include "mezzo/data/images.h"
#include "mezzo/data/loader.h"
#include "mezzo/data/transforms.h"
#include "mezzo/mezzo.h"
#include "tests/data/test_image.h"
#include "tests/support/folder.h"

namespace mz = mezzo;

namespace {

// Writes two classes of image files that differ in brightness. False if this build lacks libpng.
bool write_photos(const mz::test::Folder& folder) {
    try {
        for (const char* const name : {"cat", "dog"}) {
            std::filesystem::create_directory(folder.file(name));
            for (int i = 0; i < 8; ++i) {
                const mz::Tensor image = mz::test::test_image(40 + i, 48, 3);
                const mz::Tensor dark = mz::cast(image.to(mz::float32) * 0.4, mz::uint8);
                mz::data::write_png(folder.file(std::string(name) + "/" + std::to_string(i) + ".png"),
                                    name[0] == 'c' ? image : dark);
            }
        }
        return true;
    } catch (const mz::Error&) {
        return false;
    }
}

}  // namespace

TEST_CASE("recipe: a convolutional network on image files", "[recipes]") {
    const mz::test::Folder folder;
    if (!write_photos(folder)) {
        WARN("no libpng: skipped");
        return;
    }
    const std::string root = folder.path;
    mz::manual_seed(5);
    const int epochs = 12;
    // begin
    namespace nn = mz::nn;
    const mz::data::ImageFolder photos(root);  // root/cat/0.png, root/dog/1.jpg, ...
    mz::data::DataLoader loader(
        photos, {.batch_size = 8,
                 .shuffle = true,
                 .transforms = {mz::data::RandomResizedCrop{.size = 32}, mz::data::RandomHorizontalFlip{}},
                 .mean = 0.5,
                 .stddev = 0.25});
    const auto classes = std::int64_t(photos.classes().size());
    nn::Sequential net{nn::Conv2d(3, 16, 3, {.padding = 1, .bias = false}),
                       nn::BatchNorm2d(16),
                       nn::ReLU(),
                       nn::MaxPool2d({.kernel_size = 2}),
                       nn::Conv2d(16, 32, 3, {.padding = 1, .bias = false}),
                       nn::BatchNorm2d(32),
                       nn::ReLU(),
                       nn::AdaptiveAvgPool2d(1),
                       nn::Flatten(),
                       nn::Linear(32, classes)};
    net.to(mz::best_device());
    mz::optim::SGD optimizer(net.parameters(), {.lr = 0.05, .momentum = 0.9});
    mz::amp::GradScaler scaler;
    for (int epoch = 0; epoch < epochs; ++epoch) {
        for (const auto& [x, y] : loader) {  // x float32 [n, 32, 32, 3]
            mz::Tensor loss;
            {
                mz::amp::Autocast scope({.dtype = mz::float16});
                loss = mz::cross_entropy(net(x.to(mz::best_device())), y.to(mz::best_device()));
            }
            optimizer.zero_grad();
            scaler.scale(loss).backward();
            scaler.step(optimizer);
            scaler.update();
        }
    }
    // end
    CHECK(optimizer.applied_steps() == 2 * epochs);
    std::string name;
    // begin
    net.eval();  // batch norms take their running statistics
    const mz::NoGrad no_grad;
    const mz::Tensor image = mz::data::read_image(root + "/dog/1.png", {.mode = mz::data::ImageMode::rgb});
    const mz::Tensor x = mz::data::normalize(mz::data::CenterCrop{32}(mz::data::Resize{32}(image)),
                                             {.mean = 0.5, .stddev = 0.25});
    const mz::Tensor logits = net(x.unsqueeze(0).to(mz::best_device()));
    name = photos.classes()[std::size_t(mz::argmax(logits, 1).item<std::int64_t>())];
    // end
    CHECK(name == "dog");
}
