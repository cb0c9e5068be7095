// Transforms of images against torchvision, PIL and plain formulas.
#include "mezzo/data/transforms.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <string>

#include "data/augment.h"
#include "data/color.h"
#include "mezzo/ops.h"
#include "tests/data/test_image.h"
#include "tests/reference/images.h"

using namespace mezzo;
using namespace mezzo::test;
using Catch::Matchers::Contains;

namespace {

using Bytes = std::vector<std::uint8_t>;
Bytes bytes(const Tensor& x) { return x.to_vector<std::uint8_t>(); }

data::TransformRandom numbers(std::int64_t sample) { return {7, 3, sample}; }

Tensor plain(std::int64_t height, std::int64_t width, double value) {
    return full({height, width, 3}, value, {.dtype = uint8});
}

// Result of the operation that a row of the reference names.
Tensor computed(const reference::ImageRow& row, const Tensor& given) {
    using data::Operation;
    static const std::map<std::string, Operation> moves{{"ShearX", Operation::shear_x},
                                                        {"ShearY", Operation::shear_y},
                                                        {"TranslateX", Operation::translate_x},
                                                        {"TranslateY", Operation::translate_y},
                                                        {"Rotate", Operation::rotate}};
    static const std::map<std::string, data::Pixels (*)(const data::Pixels&, double)> factors{
        {"brightness", data::with_brightness},
        {"contrast", data::with_contrast},
        {"saturation", data::with_saturation},
        {"sharpness", data::with_sharpness},
        {"hue", data::with_hue},
        {"solarize", data::solarized}};
    const std::string name = row.name;
    const data::ImageSize size(std::int64_t(row.a), std::int64_t(row.b));
    if (name == "resize") return data::Resize{size}(given);
    if (name == "center_crop") return data::CenterCrop{size}(given);
    const data::Pixels pixels = data::pixels_of("test", given);
    if (factors.contains(name)) return factors.at(name)(pixels, row.a).image;
    if (moves.contains(name))
        return data::applied(pixels, moves.at(name), row.a, Bytes(std::size_t(row.given[2]))).image;
    if (name == "posterize") return data::posterized(pixels, int(row.a)).image;
    Bytes narrow = bytes(given);
    if (row.a > 1)
        for (std::uint8_t& v : narrow) v = std::uint8_t(v / 3 + 40);
    const data::Pixels changed = data::pixels_of("test", Tensor::from(narrow, given.shape()));
    if (name == "autocontrast") return data::autocontrasted(changed).image;
    REQUIRE(name == "equalize");
    return data::equalized(changed).image;
}

}  // namespace

TEST_CASE("images: resizing, crops, colours and moves are torchvision's and PIL's, byte for byte",
          "[transforms]") {
    for (const reference::ImageRow& row : reference::images) {
        CAPTURE(row.name, row.given[0], row.given[1], row.given[2], row.a, row.b);
        const Tensor result = computed(row, test_image(row.given[0], row.given[1], row.given[2]));
        CHECK(result.shape() == Shape{row.sizes[0], row.sizes[1], row.sizes[2]});
        CHECK(checksum(result) == row.checksum);
    }
}

TEST_CASE("images: a random crop with padding reaches all 81 places and is what they hold", "[transforms]") {
    const Tensor image = test_image(32, 32, 3);
    const Bytes from = bytes(image);
    const auto shifted = [&](int dy, int dx) {
        Bytes to(from.size(), 9);
        for (int y = 0; y < 32; ++y)
            for (int x = 0; x < 32; ++x)
                for (int c = 0; c < 3; ++c) {
                    const int i = y + dy, j = x + dx;
                    if (i >= 0 && i < 32 && j >= 0 && j < 32)
                        to[std::size_t((y * 32 + x) * 3 + c)] = from[std::size_t((i * 32 + j) * 3 + c)];
                }
        return to;
    };
    std::map<Bytes, int> places;
    for (int dy = -4; dy <= 4; ++dy)
        for (int dx = -4; dx <= 4; ++dx) places[shifted(dy, dx)] = 0;
    REQUIRE(places.size() == 81);
    const data::RandomCrop crop{.size = 32, .padding = 4, .fill = 9};
    for (int sample = 0; sample < 8100; ++sample) {
        data::TransformRandom random = numbers(sample);
        const Bytes got = bytes(crop(image, random));
        const auto place = places.find(got);
        REQUIRE(place != places.end());
        ++place->second;
    }
    double chi_squared = 0;
    for (const auto& [pixels, count] : places) {
        CHECK(count > 0);
        chi_squared += std::pow(count - 100.0, 2) / 100.0;
    }
    CHECK(chi_squared < 130);  // 80 degrees of freedom: 1 in 3,000
}

TEST_CASE("images: crops of images that are small, of one pixel, or not square", "[transforms]") {
    data::TransformRandom random = numbers(0);
    const Tensor pixel = Tensor::from(Bytes{1, 2, 3}, {1, 1, 3});
    CHECK(bytes(data::RandomCrop{.size = 1}(pixel, random)) == Bytes{1, 2, 3});
    CHECK_THROWS_WITH(
        (data::RandomCrop{.size = 4, .padding = 1}(pixel, random)),
        Contains("RandomCrop: image [1, 1, 3] with padding 1 is smaller than the crop, 4 by 4"));
    const Tensor padded =
        data::RandomCrop{.size = {2, 5}, .fill = {7, 8, 9}, .pad_if_needed = true}(pixel, random);
    CHECK(padded.shape() == Shape{2, 5, 3});
    const Bytes got = bytes(padded);
    int found = 0;
    for (std::size_t i = 0; i < got.size(); i += 3) {
        const Bytes here(got.begin() + std::ptrdiff_t(i), got.begin() + std::ptrdiff_t(i) + 3);
        found += here == Bytes{1, 2, 3};
        CHECK((here == Bytes{1, 2, 3} || here == Bytes{7, 8, 9}));
    }
    CHECK(found == 1);
    CHECK(data::RandomCrop{.size = {3, 7}}(test_image(9, 8, 2), random).shape() == Shape{3, 7, 2});
    CHECK(data::RandomResizedCrop{.size = 6}(pixel, random).shape() == Shape{6, 6, 3});
    CHECK(bytes(data::Resize{{2, 1}}(pixel)) == Bytes{1, 2, 3, 1, 2, 3});
    CHECK(data::RandomResizedCrop{.size = {4, 9}}(test_image(1, 50, 1), random).shape() == Shape{4, 9, 1});
}

TEST_CASE("images: a flip mirrors columns, twice it does nothing, and p is its probability", "[transforms]") {
    data::TransformRandom random = numbers(1);
    const data::RandomHorizontalFlip always{.p = 1}, never{.p = 0};
    for (const std::int64_t channels : {1, 3, 4}) {
        const Tensor image = test_image(5, 4, channels);
        const Tensor once = always(image, random);
        for (std::int64_t x = 0; x < 4; ++x) CHECK(bytes(once.select(1, x)) == bytes(image.select(1, 3 - x)));
        CHECK(bytes(always(once, random)) == bytes(image));
        CHECK(bytes(never(image, random)) == bytes(image));
    }
    int flips = 0;
    const Tensor image = test_image(1, 2, 1);
    for (int sample = 0; sample < 10000; ++sample) {
        data::TransformRandom own = numbers(sample);
        flips += bytes(data::RandomHorizontalFlip{.p = 0.3}(image, own)) != bytes(image);
    }
    CHECK(std::abs(flips - 3000) < 5 * 46);  // five standard deviations
    // A view whose rows do not follow each other in memory.
    const Tensor view = test_image(4, 6, 3).transpose(0, 1);
    CHECK(bytes(always(view, random).select(1, 0)) == bytes(view.select(1, 3)));
}

TEST_CASE("images: RandomResizedCrop takes windows of the areas and proportions asked for", "[transforms]") {
    // Red is the column and green the row, so the corners of the result identify the crop.
    Bytes gradient;
    for (int y = 0; y < 200; ++y)
        for (int x = 0; x < 250; ++x)
            for (const int v : {x, y, 0}) gradient.push_back(std::uint8_t(v));
    const Tensor image = Tensor::from(gradient, {200, 250, 3});
    double smallest = 1, largest = 0, narrow = 9, wide = 0;
    for (int sample = 0; sample < 2000; ++sample) {
        data::TransformRandom random = numbers(sample);
        const Tensor part = data::RandomResizedCrop{.size = 250}(image, random);
        const Bytes got = bytes(part);
        const double width = got[249 * 3] - got[0] + 1, height = got[249 * 250 * 3 + 1] - got[1] + 1;
        const double area = width * height / (200 * 250);
        smallest = std::min(smallest, area), largest = std::max(largest, area);
        narrow = std::min(narrow, width / height), wide = std::max(wide, width / height);
    }
    CHECK(smallest > 0.075);
    CHECK(smallest < 0.1);
    CHECK(largest > 0.93);
    CHECK(narrow > 0.73);
    CHECK(narrow < 0.77);
    CHECK(wide > 1.3);
    CHECK(wide < 1.37);
    // No crop fits: takes the largest central one whose proportion is allowed.
    data::TransformRandom random = numbers(0);
    const Tensor flat = test_image(10, 100, 3);
    const Tensor central = data::RandomResizedCrop{.size = 8, .scale = {1, 1}}(flat, random);
    CHECK(bytes(central) ==
          bytes(data::Resize{{8, 8}}(flat.slice(1, 43, 56))));  // 13 columns: 10 * 4 / 3, rounded
    // The whole image, if that is the crop.
    const Tensor all = data::RandomResizedCrop{.size = 8, .scale = {1, 1}, .ratio = {10, 10}}(flat, random);
    CHECK(bytes(all) == bytes(data::Resize{{8, 8}}(flat)));
}

TEST_CASE("images: ColorJitter draws factors from their ranges, in random order", "[transforms]") {
    std::set<int> levels;
    const Tensor gray = plain(2, 2, 100);
    for (int sample = 0; sample < 3000; ++sample) {
        data::TransformRandom random = numbers(sample);
        levels.insert(bytes(data::ColorJitter{.brightness = 0.4}(gray, random))[0]);
        CHECK(bytes(data::ColorJitter{.saturation = 0.9, .hue = 0.5}(gray, random)) == bytes(gray));
    }
    CHECK(*levels.begin() == 60);
    CHECK(*levels.rbegin() == 139);  // 140 is the factor's end, which is not drawn
    CHECK(levels.size() == 80);
    // Brightness and contrast do not commute, and each comes first in half of the cases.
    data::TransformRandom random = numbers(0);
    int brightness_last = 0;
    for (int sample = 0; sample < 200; ++sample) {
        data::TransformRandom own = numbers(sample), copy = own;
        const Tensor image = test_image(6, 6, 3);
        const Bytes got = bytes(data::ColorJitter{.brightness = 0.5, .contrast = 0.5}(image, own));
        (void)copy.integer(0, 4), (void)copy.integer(0, 3), (void)copy.integer(0, 2);
        const double first = copy.uniform(0.5, 1.5), second = copy.uniform(0.5, 1.5);
        const data::Pixels pixels = data::pixels_of("test", image);
        const Bytes bright = bytes(data::with_contrast(data::with_brightness(pixels, first), second).image);
        const Bytes contrast = bytes(data::with_brightness(data::with_contrast(pixels, first), second).image);
        CHECK((got == bright || got == contrast));
        brightness_last += got == contrast;
    }
    CHECK(std::abs(brightness_last - 100) < 40);
    const Tensor one = test_image(6, 6, 1);
    CHECK(data::ColorJitter{.brightness = 0.4, .contrast = 0.4, .saturation = 0.4, .hue = 0.1}(one, random)
              .shape() == Shape{6, 6, 1});
}

TEST_CASE("images: RandAugment draws every operation, and depends on its sample only", "[transforms]") {
    const Tensor image = test_image(32, 32, 3);
    // Possible results of one operation on the image.
    std::map<Bytes, int> outcomes;
    const data::Pixels pixels = data::pixels_of("test", image);
    const double share = 9.0 / 30;
    const double units[] = {0,
                            0.3 * share,
                            0.3 * share,
                            150.0 / 331 * 32 * share,
                            150.0 / 331 * 32 * share,
                            30 * share,
                            0.9 * share,
                            0.9 * share,
                            0.9 * share,
                            0.9 * share,
                            8 - std::nearbyint(4 * share),
                            255 - 255 * share,
                            0,
                            0};
    for (int i = 0; i < data::operations; ++i)
        for (const double sign : {1.0, -1.0}) {
            if (sign < 0 && (i == 0 || i > 9)) continue;
            outcomes[bytes(data::applied(pixels, data::Operation(i), sign * units[i], {5, 5, 5}).image)] = 0;
        }
    REQUIRE(outcomes.size() == 23);  // 14, and 9 of them with the other sign
    const data::RandAugment one{.num_ops = 1, .fill = 5};
    for (int sample = 0; sample < 2800; ++sample) {
        data::TransformRandom random = numbers(sample), again = numbers(sample);
        const Bytes got = bytes(one(image, random));
        REQUIRE(outcomes.contains(got));
        ++outcomes[got];
        CHECK(bytes(one(image, again)) == got);
    }
    for (const auto& [result, count] : outcomes) CHECK(count > 50);  // 100 or 200 are expected
    data::TransformRandom random = numbers(0);
    CHECK(bytes(data::RandAugment{.num_ops = 0}(image, random)) == bytes(image));
    for (const std::int64_t side : {1, 2}) {
        const Tensor small = test_image(side, 1, 1);
        for (int i = 0; i < 100; ++i)
            CHECK(data::RandAugment{.magnitude = 30}(small, random).shape() == Shape{side, 1, 1});
    }
}

TEST_CASE("images: RandomErasing colours one rectangle and leaves its input", "[transforms]") {
    const Tensor image = plain(20, 30, 200);
    int erased = 0;
    for (int sample = 0; sample < 1000; ++sample) {
        data::TransformRandom random = numbers(sample);
        const Tensor result = data::RandomErasing{.p = 0.25, .value = {1, 2, 3}}(image, random);
        const Bytes got = bytes(result);
        std::int64_t top = 20, bottom = -1, left = 30, right = -1, count = 0;
        for (std::int64_t i = 0; i < 600; ++i) {
            if (got[std::size_t(3 * i)] == 200) continue;
            ++count;
            CHECK(got[std::size_t(3 * i + 2)] == 3);
            top = std::min(top, i / 30), bottom = std::max(bottom, i / 30);
            left = std::min(left, i % 30), right = std::max(right, i % 30);
        }
        if (count == 0) continue;
        ++erased;
        CHECK(count == (bottom - top + 1) * (right - left + 1));
        CHECK(double(count) / 600 > 0.01);
        CHECK(double(count) / 600 < 0.36);
    }
    CHECK(std::abs(erased - 250) < 70);
    CHECK(bytes(image) == Bytes(1800, 200));
}

TEST_CASE("transforms say what is wrong with an image or an option", "[transforms]") {
    data::TransformRandom random = numbers(0);
    const Tensor image = test_image(4, 4, 3);
    CHECK_THROWS_WITH(data::CenterCrop{2}(zeros({4, 4, 3})), Contains("CenterCrop: the image is float32"));
    CHECK_THROWS_WITH(data::CenterCrop{2}(image.select(2, 0)),
                      Contains("[4, 4] is not [height, width, channels]; unsqueeze(-1)"));
    CHECK_THROWS_WITH(data::CenterCrop{2}(Tensor()), Contains("undefined"));
    CHECK_THROWS_WITH(data::CenterCrop{2}(image.slice(0, 2, 2)), Contains("has no pixels"));
    CHECK_THROWS_WITH(data::CenterCrop{}(image), Contains("size is 0 by 0"));
    CHECK_THROWS_WITH(data::Resize{-3}(image), Contains("Resize: size is -3"));
    CHECK_THROWS_WITH((data::RandomCrop{.size = 4, .padding = -1}(image, random)), Contains("padding is -1"));
    CHECK_THROWS_WITH((data::RandomCrop{.size = 4, .fill = 256}(image, random)), Contains("colour 256"));
    CHECK_THROWS_WITH((data::RandomCrop{.size = 4, .fill = {1, 2}}(image, random)),
                      Contains("2 values of a colour, the image has 3 channels"));
    CHECK_THROWS_WITH(data::RandomHorizontalFlip{1.5}(image, random), Contains("p is 1.5"));
    CHECK_THROWS_WITH((data::RandomResizedCrop{.size = 4, .scale = {0, 1}}(image, random)),
                      Contains("scale is 0 to 1; it must be positive and ascending"));
    CHECK_THROWS_WITH((data::RandomResizedCrop{.size = 4, .ratio = {2, 1}}(image, random)),
                      Contains("ratio is 2 to 1"));
    CHECK_THROWS_WITH((data::ColorJitter{.hue = 0.6}(image, random)), Contains("hue is 0.6"));
    CHECK_THROWS_WITH((data::ColorJitter{.hue = 0.1}(test_image(4, 4, 4), random)), Contains("4 channels"));
    CHECK_THROWS_WITH((data::RandAugment{.magnitude = 31}(image, random)), Contains("magnitude 31"));
    CHECK_THROWS_WITH((data::RandomErasing{.p = -1}(image, random)), Contains("p is -1"));
}

TEST_CASE("random numbers of a sample depend on seed, epoch and sample, and have their distributions",
          "[transforms]") {
    std::set<double> first;
    for (int seed = 0; seed < 10; ++seed)
        for (int epoch = 0; epoch < 10; ++epoch)
            for (int sample = 0; sample < 10; ++sample)
                for (int stream = 0; stream < 2; ++stream)
                    first.insert(
                        data::TransformRandom(std::uint64_t(seed), epoch, sample, std::uint64_t(stream))
                            .uniform());
    CHECK(first.size() == 2000);
    data::TransformRandom random = numbers(5), again = numbers(5);
    double sum = 0, squares = 0;
    int counts[5] = {};
    for (int i = 0; i < 50000; ++i) {
        const double u = random.uniform(2, 4);
        CHECK((u >= 2 && u < 4 && u == again.uniform(2, 4)));
        sum += u;
        squares += u * u;
        ++counts[again.integer(-2, 3) + 2];
        (void)random.uniform();
    }
    CHECK(sum / 50000 == Approx(3).margin(0.015));
    CHECK(squares / 50000 - 9 == Approx(1.0 / 3).margin(0.03));
    for (const int count : counts) CHECK(std::abs(count - 10000) < 500);
    CHECK_THROWS_WITH(random.integer(3, 3), Contains("no integer from 3 to below 3"));
    CHECK_THROWS_WITH(random.beta(0), Contains("beta of 0"));
    for (const double alpha : {1e-3, 0.2, 1.0, 8.0}) {
        CAPTURE(alpha);
        double mean = 0, square = 0;
        for (int i = 0; i < 20000; ++i) {
            const double lambda = random.beta(alpha);
            REQUIRE((lambda >= 0 && lambda <= 1));
            mean += lambda / 20000;
            square += lambda * lambda / 20000;
        }
        CHECK(mean == Approx(0.5).margin(0.015));
        CHECK(square - mean * mean == Approx(1 / (4 * (2 * alpha + 1))).epsilon(0.03));
    }
}

TEST_CASE("transforms: numbers at the end of their types", "[transforms]") {
    constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();
    const Tensor image = plain(5, 7, 9);
    data::TransformRandom random = numbers(0);
    for (const std::int64_t side : {largest, std::int64_t(1) << 31}) {
        CHECK_THROWS_AS(data::RandomCrop({.size = side, .pad_if_needed = true})(image, random), Error);
        CHECK_THROWS_AS(data::RandomCrop({.size = 3, .padding = side})(image, random), Error);
        CHECK_THROWS_AS(data::CenterCrop{side}(image), Error);
        CHECK_THROWS_AS(data::Resize{side}(image), Error);
        CHECK_THROWS_AS(data::Resize({.size = {side, side}})(image), Error);
        CHECK_THROWS_AS(data::RandomResizedCrop{side}(image, random), Error);
    }
    // The longer side would have more than 2^31 - 1 pixels.
    CHECK_THROWS_WITH(data::Resize{std::int64_t(2000000000)}(image), Contains("a side has at most"));
    // Areas and proportions beyond int64: no rectangle fits.
    for (const double high : {1e30, 1e300}) {
        const data::RandomResizedCrop crop{.size = 2, .scale = {1e29, high}, .ratio = {1e-300, high}};
        CHECK(crop(image, random).shape() == Shape{2, 2, 3});
        const data::RandomErasing erasing{.p = 1, .scale = {1e29, high}, .ratio = {1e-310, high}};
        CHECK(bytes(erasing(image, random)) == bytes(image));
    }
    for (const double alpha : {1e-320, 1e-300, 1e300}) {
        const double value = random.beta(alpha);
        CHECK((value >= 0 && value <= 1));
    }
}
