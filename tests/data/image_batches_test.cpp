// Batches of images: DataLoader with transforms and lazy data sets, MixUp, CutMix, normalisation per channel.
#include <algorithm>
#include <catch2/catch.hpp>
#include <set>

#include "mezzo/data/loader.h"
#include "mezzo/device.h"
#include "mezzo/ops.h"
#include "tests/data/test_image.h"

using namespace mezzo;
using namespace mezzo::test;
using Catch::Matchers::Contains;

namespace {

data::DataLoaderOptions augmented() {
    return {.batch_size = 8,
            .shuffle = true,
            .seed = 11,
            .transforms = {data::RandomCrop{.size = 8, .padding = 2}, data::RandomHorizontalFlip{},
                           data::ColorJitter{.brightness = 0.4}, data::RandAugment{}},
            .mean = {0.49, 0.48, 0.45},
            .stddev = {0.25, 0.24, 0.26},
            .batch_transforms = {
                data::RandomChoice{{data::MixUp{.num_classes = 30}, data::CutMix{.num_classes = 30}}}}};
}

// All values of x and y in an epoch.
std::vector<float> epoch_of(data::DataLoader& loader) {
    std::vector<float> values;
    for (const auto& [x, y] : loader)
        for (const Tensor& part : {x, y.to(float32)}) {
            const std::vector<float> more = part.to_vector<float>();
            values.insert(values.end(), more.begin(), more.end());
        }
    return values;
}

struct Threads {
    explicit Threads(int n) : before(num_threads()) { set_num_threads(n); }
    ~Threads() { set_num_threads(before); }
    Threads(const Threads&) = delete;
    Threads& operator=(const Threads&) = delete;
    int before;
};

// Images of different sizes, made on demand.
struct Growing {
    std::int64_t size() const { return 6; }
    Tensor image(std::int64_t i) const { return test_image(i + 1, 2 * i + 3, 3); }
    std::int64_t label(std::int64_t i) const { return 10 * i; }
};

data::Batch ramp_batch(std::int64_t n, std::int64_t side) {
    const Tensor x = arange(n).to(float32).reshape({n, 1, 1, 1}).expand({n, side, side, 2}).contiguous();
    return {x, arange(n)};
}

}  // namespace

TEST_CASE("loader: the batches of an epoch are the same for 1, 2 and 3 threads, and after a resume",
          "[image_batches]") {
    const data::Dataset images = some_images(30, 8);
    std::vector<std::vector<float>> epochs;
    for (const int threads : {1, 2, 3}) {
        const Threads scope(threads);
        data::DataLoader loader(images, augmented());
        for (std::size_t e = 0; e < 3; ++e) {
            const std::vector<float> values = epoch_of(loader);
            REQUIRE(values.size() == 30 * (8 * 8 * 3 + 30));
            if (threads == 1)
                epochs.push_back(values);
            else
                CHECK(values == epochs[e]);
        }
    }
    CHECK(epochs[0] != epochs[1]);
    CHECK(epochs[1] != epochs[2]);
    data::DataLoader resumed(images, augmented());
    resumed.set_epoch(2);
    CHECK(epoch_of(resumed) == epochs[2]);
    // Another batch size and order change the contents of batches, but not the transforms of a sample.
    data::DataLoaderOptions alone = augmented(), all = augmented();
    alone.batch_transforms = all.batch_transforms = {};
    alone.shuffle = all.shuffle = false;
    alone.batch_size = 1;
    data::DataLoader small(images, alone), large(images, all);
    std::vector<float> a, b;
    for (const auto& [x, y] : small)
        for (const float v : x.to_vector<float>()) a.push_back(v);
    for (const auto& [x, y] : large)
        for (const float v : x.to_vector<float>()) b.push_back(v);
    CHECK(a == b);
    alone.seed = 12;
    data::DataLoader other(images, alone);
    std::vector<float> c;
    for (const auto& [x, y] : other)
        for (const float v : x.to_vector<float>()) c.push_back(v);
    CHECK(a != c);
}

TEST_CASE("loader: bytes are normalised per channel, in the dtype asked for", "[image_batches]") {
    const data::Dataset images = some_images(5, 8);
    const data::PerChannel mean{0.49, 0.48, 0.45}, stddev{0.25, 0.24, 0.26};
    const std::vector<std::uint8_t> from = images.x.to_vector<std::uint8_t>();
    for (const bool transforms : {false, true})
        for (const Dtype dtype : {float32, float64, bfloat16, float16}) {
            CAPTURE(transforms, dtype_info(dtype).name);
            data::DataLoaderOptions options{.batch_size = 5, .mean = mean, .stddev = stddev, .dtype = dtype};
            if (transforms) options.transforms = {data::CenterCrop{8}};
            data::DataLoader loader(images, options);
            const data::Batch batch = *loader.begin();
            CHECK(batch.x.dtype() == dtype);
            CHECK(batch.y.dtype() == int64);
            const std::vector<double> got = batch.x.to_vector<double>();
            std::vector<double> expected;
            for (std::size_t i = 0; i < from.size(); ++i)
                expected.push_back((from[i] / 255.0 - mean[std::int64_t(i % 3)]) /
                                   stddev[std::int64_t(i % 3)]);
            CHECK(got ==
                  Tensor::from<double>(expected, images.x.shape(), {.dtype = dtype}).to_vector<double>());
        }
    // One value for all, four channels, and floating samples with a value for each channel.
    const Tensor bytes = test_image(3, 5, 4);
    CHECK(all_close(data::normalize(bytes, {.mean = 0.5, .stddev = 0.25}),
                    (bytes.to(float32) / 255 - 0.5) / 0.25));
    CHECK(all_close(data::normalize(bytes, {.mean = {0, 0.1, 0.2, 0.3}}),
                    bytes.to(float32) / 255 - Tensor::from({0, 0.1F, 0.2F, 0.3F})));
    CHECK(data::normalize(bytes.slice(0, 0, 0), {}).shape() == Shape{0, 5, 4});
    CHECK(all_close(data::normalize(bytes.transpose(0, 1), {}), bytes.transpose(0, 1).to(float32) / 255));
    const Tensor samples = Tensor::from({1, 2, 3, 4}, {2, 2});
    data::DataLoader real({samples, arange(2)}, {.batch_size = 2, .mean = {1, 2}, .stddev = {2, 4}});
    CHECK((*real.begin()).x.to_vector<float>() == std::vector<float>{0, 0, 1, 0.5F});
}

TEST_CASE("loader: lazy data sets, and transforms of one's own", "[image_batches]") {
    data::DataLoader loader(
        Growing(),
        {.batch_size = 4,
         .transforms = {data::Resize{{4, 5}}, [](const Tensor& image) { return image.slice(1, 0, 2); },
                        [](const Tensor& image, data::TransformRandom& random) {
                            return random.chance(2) ? image.slice(0, 0, 3) : image;
                        }}});
    CHECK(loader.size() == 2);
    std::vector<std::int64_t> labels;
    std::int64_t i = 0;
    for (const auto& [x, y] : loader) {
        CHECK(x.shape() == Shape{y.size(0), 3, 2, 3});
        for (std::int64_t row = 0; row < y.size(0); ++row, ++i) {
            const Tensor image = data::Resize{{4, 5}}(Growing().image(i)).slice(1, 0, 2).slice(0, 0, 3);
            CHECK(all_close(x[row], image.to(float32) / 255));
        }
        for (const std::int64_t label : y.to_vector<std::int64_t>()) labels.push_back(label);
    }
    CHECK(labels == std::vector<std::int64_t>{0, 10, 20, 30, 40, 50});
    CHECK_THROWS_WITH(loader.dataset(), Contains("made when they are asked for"));

    data::DataLoader uneven(Growing(), {.batch_size = 2});
    CHECK_THROWS_WITH(*uneven.begin(), Contains("cannot be in one batch"));
    data::DataLoader failing(Growing(), {.transforms = {[](const Tensor& image) -> Tensor {
                                             if (image.size(0) == 3) throw std::runtime_error("third image");
                                             return data::Resize{{2, 2}}(image);
                                         }}});
    CHECK_THROWS_WITH(*failing.begin(), Contains("third image"));
    data::DataLoader wrong(Growing(),
                           {.transforms = {[](const Tensor& image) { return image.to(float32); }}});
    CHECK_THROWS_WITH(*wrong.begin(), Contains("DataLoader: the image is float32"));
}

TEST_CASE("loader: options that do not fit images are refused at once", "[image_batches]") {
    const data::Dataset images = some_images(2, 8);
    CHECK_THROWS_WITH(data::DataLoader(images, {.mean = {0.1, 0.2}}),
                      Contains("mean has 2 values and stddev 1, the samples have 3 channels"));
    CHECK_THROWS_WITH(data::DataLoader(images, {.stddev = {1, 0, 1}}), Contains("mean is 0 and stddev 0"));
    CHECK_THROWS_WITH(data::DataLoader(images, {.mean = std::vector<double>()}), Contains("has no value"));
    CHECK_THROWS_WITH(data::DataLoader(images, {.dtype = int32}), Contains("dtype is int32"));
    CHECK_THROWS_WITH(
        data::DataLoader({images.x.to(float32), images.y}, {.transforms = {data::CenterCrop{2}}}),
        Contains("transforms take uint8 images, x is float32"));
    CHECK_THROWS_WITH(
        data::DataLoader({images.x.select(3, 0), images.y}, {.transforms = {data::CenterCrop{2}}}),
        Contains("is not [n, height, width, channels]; unsqueeze(-1)"));
    data::DataLoader late(Growing(), {.batch_size = 1, .mean = {0.1, 0.2}});
    CHECK_THROWS_WITH(*late.begin(), Contains("the samples have 3 channels"));
}

TEST_CASE("MixUp mixes neighbours by one lambda, and the targets by the same", "[image_batches]") {
    double sum = 0;
    for (int i = 0; i < 500; ++i) {
        data::TransformRandom random(1, 0, i);
        const data::Batch batch = ramp_batch(5, 3);
        const data::Batch mixed = data::MixUp{.num_classes = 7, .alpha = 1}(batch, random);
        CHECK(mixed.y.shape() == Shape{5, 7});
        CHECK(mixed.y.dtype() == float32);
        const std::vector<float> y = mixed.y.to_vector<float>(), x = mixed.x.to_vector<float>();
        const double lambda = y[0];
        sum += lambda;
        for (std::size_t row = 0; row < 5; ++row) {
            const std::size_t before = (row + 4) % 5;
            CHECK(y[row * 7 + row] == Approx(lambda).margin(1e-6));
            CHECK(y[row * 7 + before] == Approx(1 - lambda).margin(1e-6));
            for (std::size_t k = 0; k < 18; ++k)
                CHECK(x[row * 18 + k] ==
                      Approx(lambda * double(row) + (1 - lambda) * double(before)).margin(1e-5));
        }
    }
    CHECK(sum / 500 == Approx(0.5).margin(0.06));
}

TEST_CASE("CutMix replaces one rectangle, whose share is 1 - lambda", "[image_batches]") {
    std::set<std::int64_t> areas;
    for (int i = 0; i < 500; ++i) {
        data::TransformRandom random(1, 0, i);
        const data::Batch batch = ramp_batch(4, 10);
        const data::Batch mixed = data::CutMix{.num_classes = 4}(batch, random);
        const std::vector<float> y = mixed.y.to_vector<float>();
        for (std::int64_t row = 0; row < 4; ++row) {
            const std::vector<float> x = mixed.x[row].to_vector<float>();
            const float before = float((row + 3) % 4);
            std::int64_t top = 10, bottom = -1, left = 10, right = -1, count = 0;
            for (std::int64_t p = 0; p < 100; ++p) {
                CHECK((x[std::size_t(2 * p)] == float(row) || x[std::size_t(2 * p)] == before));
                CHECK(x[std::size_t(2 * p)] == x[std::size_t(2 * p + 1)]);
                if (x[std::size_t(2 * p)] != before) continue;
                ++count;
                top = std::min(top, p / 10), bottom = std::max(bottom, p / 10);
                left = std::min(left, p % 10), right = std::max(right, p % 10);
            }
            if (count > 0) CHECK(count == (bottom - top + 1) * (right - left + 1));
            CHECK(y[std::size_t(row * 4 + row)] == Approx(1 - double(count) / 100).margin(1e-6));
            CHECK(y[std::size_t(row * 4 + (row + 3) % 4)] == Approx(double(count) / 100).margin(1e-6));
            areas.insert(count);
        }
    }
    CHECK(areas.size() > 20);
    CHECK(*areas.begin() == 0);
    CHECK(*areas.rbegin() == 64);  // half of a side is rounded down to 4
}

TEST_CASE("MixUp and CutMix take soft targets, one sample and 16 bit, and say what is wrong",
          "[image_batches]") {
    data::TransformRandom random(1, 0, 0);
    const data::MixUp mix{.num_classes = 5};
    const data::CutMix cut{.num_classes = 5};
    const data::Batch twice = mix(cut(ramp_batch(5, 6), random), random);
    CHECK(all_close(sum(twice.y, {1}), ones({5}), 1e-5));
    const data::Batch alone = mix(ramp_batch(1, 3), random);
    CHECK(alone.y.to_vector<float>()[0] == Approx(1));
    CHECK(all_close(cut(ramp_batch(1, 3), random).x, ramp_batch(1, 3).x));
    const data::Batch half{ramp_batch(3, 2).x.to(bfloat16), arange(3)};
    CHECK(mix(half, random).x.dtype() == bfloat16);
    CHECK(cut({zeros({0, 4, 4, 3}), zeros({0}, {.dtype = int64})}, random).y.shape() == Shape{0, 5});
    CHECK_THROWS_WITH(data::MixUp{}(ramp_batch(2, 2), random), Contains("MixUp: num_classes is 0"));
    CHECK_THROWS_WITH((data::MixUp{.num_classes = 5, .alpha = 0}(ramp_batch(2, 2), random)),
                      Contains("alpha is 0"));
    CHECK_THROWS_WITH((data::MixUp{.num_classes = 2}(ramp_batch(4, 2), random)),
                      Contains("class 2 is not below num_classes, 2"));
    CHECK_THROWS_WITH((mix({test_image(2, 2, 3), arange(2)}, random)), Contains("x is uint8"));
    CHECK_THROWS_WITH((mix({zeros({2, 2}), arange(3)}, random)), Contains("differ in their first sizes"));
    CHECK_THROWS_WITH((mix({zeros({2, 2}), zeros({2, 3})}, random)), Contains("is not [2, 5]"));
    CHECK_THROWS_WITH((cut({zeros({2, 2}), arange(2)}, random)),
                      Contains("is not [n, height, width, channels]"));
    CHECK_THROWS_WITH(data::RandomChoice{}(ramp_batch(2, 2), random), Contains("no choices"));
}
