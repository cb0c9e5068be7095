// The code of docs/guide/images.md: each block there is a case here.
#include <catch2/catch.hpp>

#include "mezzo/data/images.h"
#include "mezzo/data/loader.h"
#include "mezzo/data/transforms.h"
#include "mezzo/mezzo.h"
#include "tests/data/test_image.h"
#include "tests/support/folder.h"

namespace mz = mezzo;

namespace {

// A folder with the files that the document names; it is the working directory while the object exists.
struct InFolder {
    InFolder() {
        std::filesystem::current_path(folder.path);
        std::filesystem::create_directory(folder.file("cifar-10-batches-bin"));
        for (const char* const name :
             {"data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"})
            folder.write("cifar-10-batches-bin/" + std::string(name) + ".bin", records());
    }
    ~InFolder() { std::filesystem::current_path(before); }
    InFolder(const InFolder&) = delete;
    InFolder& operator=(const InFolder&) = delete;

    // Four images that differ.
    static std::string records() {
        std::string bytes;
        for (int label = 0; label < 4; ++label) {
            bytes += char(label);
            for (int i = 0; i < 3072; ++i) bytes += char(i * (label + 1) % 251);
        }
        return bytes;
    }
    // Writes two classes of image files. False if this build lacks libpng.
    bool write_images() const {
        try {
            for (const char* const name : {"photos", "photos/cat", "photos/dog"})
                std::filesystem::create_directory(folder.file(name));
            for (const char* const name : {"cat/1.png", "cat/2.png", "dog/3.png"})
                mz::data::write_png("photos/" + std::string(name), mz::test::test_image(300, 280, 3));
            return true;
        } catch (const mz::Error&) {
            return false;
        }
    }
    std::filesystem::path before = std::filesystem::current_path();
    mz::test::Folder folder;
};

struct Net : mz::nn::Module {
    mz::nn::Linear head{32 * 32 * 3, 10};
    MEZZO_MODULE(Net, head)
    mz::Tensor forward(const mz::Tensor& x) const { return head(x.flatten(1)); }
};

}  // namespace

TEST_CASE("images document: CIFAR-10", "[images]") {
    const InFolder here;
    std::int64_t images = 0;
    // begin
    mz::data::DataLoader train(
        mz::data::cifar10({.directory = "cifar-10-batches-bin"}),
        {.batch_size = 128,
         .shuffle = true,
         .transforms = {mz::data::RandomCrop{.size = 32, .padding = 4}, mz::data::RandomHorizontalFlip{}},
         .mean = {0.4914, 0.4822, 0.4465},
         .stddev = {0.2470, 0.2435, 0.2616}});
    for (const auto& [x, y] : train) images += x.size(0);  // x float32 [n, 32, 32, 3], y int64 [n]
    // end
    CHECK(images == 20);
}

TEST_CASE("images document: a folder per class", "[images]") {
    const InFolder here;
    if (!here.write_images()) return;
    // begin
    const mz::data::ImageFolder photos("photos");  // photos/cat/1.png, photos/dog/3.png, ...
    mz::data::DataLoader train(
        photos, {.batch_size = 64,
                 .shuffle = true,
                 .transforms = {mz::data::RandomResizedCrop{.size = 224}, mz::data::RandomHorizontalFlip{},
                                mz::data::RandAugment{}},
                 .mean = {0.485, 0.456, 0.406},
                 .stddev = {0.229, 0.224, 0.225}});
    mz::data::DataLoader test(photos, {.transforms = {mz::data::Resize{256}, mz::data::CenterCrop{224}},
                                       .mean = {0.485, 0.456, 0.406},
                                       .stddev = {0.229, 0.224, 0.225}});
    // end
    for (mz::data::DataLoader* loader : {&train, &test})
        for (const auto& [x, y] : *loader) CHECK(x.shape() == mz::Shape{3, 224, 224, 3});
    // begin
    const mz::Tensor image = mz::data::read_image("photos/cat/1.png", {.mode = mz::data::ImageMode::rgb});
    const mz::Tensor x = mz::data::normalize(mz::data::CenterCrop{224}(mz::data::Resize{256}(image)),
                                             {.mean = {0.485, 0.456, 0.406}, .stddev = {0.229, 0.224, 0.225}})
                             .unsqueeze(0);  // a batch of one
    // end
    CHECK(x.shape() == mz::Shape{1, 224, 224, 3});
}

TEST_CASE("images document: mixup and cutmix", "[images]") {
    const InFolder here;
    const mz::data::Dataset dataset = mz::data::cifar10({.directory = "cifar-10-batches-bin"});
    const Net net;
    mz::optim::SGD optimizer(net.parameters(), {.lr = 1e-3});
    // begin
    using mz::data::CutMix, mz::data::MixUp, mz::data::RandomChoice;
    mz::data::DataLoader train(
        dataset, {.batch_size = 10,
                  .shuffle = true,
                  .batch_transforms = {RandomChoice{{MixUp{.num_classes = 10}, CutMix{.num_classes = 10}}}}});
    for (const auto& [x, y] : train) {  // y float32 [n, 10]
        const mz::Tensor loss = mz::cross_entropy(net.forward(x), y);
        optimizer.zero_grad();
        loss.backward();
        optimizer.step();
    }
    // end
    CHECK(train.size() == 2);
}

TEST_CASE("images document: one's own", "[images]") {
    // begin
    struct Squares {  // any class with these three functions is a data set
        std::int64_t size() const { return 1000; }
        std::int64_t label(std::int64_t i) const { return i % 10; }
        mz::Tensor image(std::int64_t i) const {
            return mz::full({16, 16, 3}, double(20 * (i % 10)), {.dtype = mz::uint8});
        }
    };
    const auto left_half = [](const mz::Tensor& image) { return image.slice(1, 0, image.size(1) / 2); };
    const auto darker = [](const mz::Tensor& image, mz::data::TransformRandom& random) {
        return random.chance(0.5) ? mz::zeros_like(image) : image;
    };
    mz::data::DataLoader loader(Squares(), {.batch_size = 100, .transforms = {left_half, darker}});
    // end
    std::int64_t batches = 0;
    for (const auto& [x, y] : loader) {
        CHECK(x.shape() == mz::Shape{100, 16, 8, 3});
        ++batches;
    }
    CHECK(batches == 10);
}
