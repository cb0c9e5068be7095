// Samplers: weighted draws, and custom orders in a loader.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <set>

#include "mezzo/data/batch_loader.h"
#include "mezzo/data/loader.h"
#include "mezzo/data/preprocess.h"
#include "mezzo/ops.h"

using namespace mezzo;
using Catch::Matchers::Contains;
using data::WeightedRandomSampler;

namespace {

using Integers = std::vector<std::int64_t>;

Integers order_of(const WeightedRandomSampler& sampler, std::int64_t epoch) {
    return sampler.order(epoch).to_vector<std::int64_t>();
}

// Whether `hits` of n draws fit a probability: within 5 standard deviations.
bool fits(std::int64_t hits, std::int64_t n, double p) {
    return std::abs(double(hits) - double(n) * p) <= 5 * std::sqrt(double(n) * p * (1 - p)) + 1e-9;
}

struct Given {
    Tensor rows;
    std::int64_t count;
    std::int64_t size() const { return count; }
    Tensor order(std::int64_t epoch) const { return epoch % 2 == 0 ? rows : rows + 1; }
};

Integers labels_of(data::DataLoader& loader) {
    Integers labels;
    for (const auto& [x, y] : loader) {
        const Integers more = y.to_vector<std::int64_t>();
        labels.insert(labels.end(), more.begin(), more.end());
    }
    return labels;
}

}  // namespace

TEST_CASE("weighted sampler: draws in proportion to the weights", "[sampler]") {
    const WeightedRandomSampler sampler({1, 0, 3, 0.5, 5.5, 0}, {.num_samples = 40000, .seed = 9});
    CHECK(sampler.size() == 40000);
    const Integers order = order_of(sampler, 0);
    const auto count = [&](std::int64_t sample) { return std::count(order.begin(), order.end(), sample); };
    CHECK(fits(count(0), 40000, 0.1));
    CHECK(fits(count(2), 40000, 0.3));
    CHECK(fits(count(3), 40000, 0.05));
    CHECK(fits(count(4), 40000, 0.55));
    CHECK(count(1) + count(5) == 0);
    CHECK(order_of(sampler, 0) == order);
    CHECK(order_of(sampler, 1) != order);
    CHECK(order_of(WeightedRandomSampler({1, 0, 3, 0.5, 5.5, 0}, {.num_samples = 40000, .seed = 10}), 0) !=
          order);
    CHECK(WeightedRandomSampler({1, 2, 3}).size() == 3);
}

TEST_CASE("weighted sampler: without replacement each sample comes once, heavy ones first", "[sampler]") {
    const WeightedRandomSampler sampler({1, 0, 3, 6}, {.num_samples = 3, .replacement = false, .seed = 4});
    std::int64_t first[4] = {}, second_after_last = 0, last_first = 0;
    const std::int64_t epochs = 4000;
    for (std::int64_t epoch = 0; epoch < epochs; ++epoch) {
        const Integers order = order_of(sampler, epoch);
        REQUIRE(std::set<std::int64_t>(order.begin(), order.end()) == std::set<std::int64_t>{0, 2, 3});
        ++first[order[0]];
        last_first += order[0] == 3;
        second_after_last += order[0] == 3 && order[1] == 2;
    }
    CHECK(fits(first[0], epochs, 0.1));
    CHECK(fits(first[2], epochs, 0.3));
    CHECK(fits(first[3], epochs, 0.6));
    CHECK(fits(second_after_last, last_first, 0.75));
}

TEST_CASE("weighted sampler: options are validated", "[sampler]") {
    CHECK_THROWS_WITH(WeightedRandomSampler({}), Contains("the 0 weights add up to 0"));
    CHECK_THROWS_WITH(WeightedRandomSampler({0, 0}), Contains("the 2 weights add up to 0"));
    CHECK_THROWS_WITH(WeightedRandomSampler({1, -2}), Contains("weight 1 is -2"));
    CHECK_THROWS_WITH(WeightedRandomSampler({std::nan("")}), Contains("weight 0 is nan"));
    const double huge = std::numeric_limits<double>::max();
    CHECK_THROWS_WITH(WeightedRandomSampler({huge, huge}), Contains("add up to inf"));
    CHECK_THROWS_WITH(WeightedRandomSampler({1}, {.num_samples = -1}), Contains("num_samples is -1"));
    CHECK_THROWS_WITH(WeightedRandomSampler({1, 0, 2}, {.replacement = false}),
                      Contains("3 samples without replacement, and only 2 have a weight above 0"));
    CHECK(order_of(WeightedRandomSampler({huge}, {.num_samples = 2}), 0) == Integers{0, 0});
}

TEST_CASE("loader: a sampler says which samples an epoch has", "[sampler]") {
    const data::Dataset set{arange(6).to(float32).reshape({6, 1}), arange(6)};
    const Given given{Tensor::from(Integers{4, 0, 0, 3, 1}, {5}), 5};
    data::DataLoader loader(set, {.batch_size = 2, .sampler = given});
    CHECK(loader.size() == 3);
    CHECK(labels_of(loader) == Integers{4, 0, 0, 3, 1});
    CHECK(labels_of(loader) == Integers{5, 1, 1, 4, 2});
    loader.set_position({.epoch = 0, .samples = 2});
    CHECK(labels_of(loader) == Integers{0, 3, 1});
    data::DataLoader second(set, {.batch_size = 4, .sampler = given, .shard = {1, 2}});
    CHECK(labels_of(second) == Integers{0, 3, 1});  // of two ranks; the last row is repeated
    CHECK_THROWS_WITH(second.set_position({.epoch = 0, .samples = 6}), Contains("an epoch has 5 samples"));
    data::DataLoader weighted(set,
                              {.sampler = WeightedRandomSampler({0, 0, 1, 0, 0, 0}, {.num_samples = 9})});
    CHECK(labels_of(weighted) == Integers(9, 2));
}

TEST_CASE("loader: a sample that comes twice is augmented twice", "[sampler]") {
    const data::Dataset set{zeros({2, 8, 8, 1}, {.dtype = uint8}), arange(2)};
    data::DataLoader loader(set, {.batch_size = 3,
                                  .sampler = Given{zeros({3}, {.dtype = int64}), 3},
                                  .transforms = {data::RandomErasing{.p = 1, .value = 255}}});
    const Tensor x = (*loader.begin()).x;
    CHECK(x[0].to_vector<float>() != x[1].to_vector<float>());
    CHECK(x[1].to_vector<float>() != x[2].to_vector<float>());
    loader.set_epoch(0);
    CHECK((*loader.begin()).x.to_vector<float>() == x.to_vector<float>());
}

TEST_CASE("loader: orders that are none are refused", "[sampler]") {
    const data::Dataset set{zeros({6, 1}), arange(6)};
    const auto begin = [&](const Tensor& rows, std::int64_t count) {
        data::DataLoader(set, {.sampler = Given{rows, count}}).begin();
    };
    CHECK_THROWS_WITH(begin(zeros({2}), 2), Contains("the sampler's order is float32; it must be int64"));
    CHECK_THROWS_WITH(begin(Tensor(), 2), Contains("the sampler's order is undefined"));
    CHECK_THROWS_WITH(begin(arange(3), 2), Contains("the sampler's order is [3] on cpu; its size() is 2"));
    CHECK_THROWS_WITH(begin(arange(7), 7),
                      Contains("place 6 of the sampler's order is sample 6, and there are 6"));
    CHECK_THROWS_WITH(begin(arange(2) - 1, 2), Contains("place 0 of the sampler's order is sample -1"));
    CHECK_THROWS_WITH(data::DataLoader(set, {.shuffle = true, .sampler = Given{arange(2), 2}}),
                      Contains("shuffle and a sampler"));
}

TEST_CASE("loaders: after a sampler has thrown, the next loop is the same epoch", "[sampler]") {
    struct Failing {
        int* calls;
        std::int64_t size() const { return 2; }
        Tensor order(std::int64_t epoch) const {
            if (++*calls == 1) throw std::runtime_error("no order");
            return full({2}, double(epoch), {.dtype = int64});
        }
    };
    const auto first_of = [](auto& loader, auto&& label) {
        CHECK_THROWS_WITH(loader.begin(), "no order");
        std::int64_t first = -1;
        for (const auto& batch : loader) first = label(batch);
        return first;
    };
    int calls = 0, batch_calls = 0;
    data::DataLoader loader({zeros({3, 1}), arange(3)}, {.sampler = Failing{&calls}});
    CHECK(first_of(loader, [](const data::Batch& b) { return b.y.select(0, 0).item<std::int64_t>(); }) == 0);
    struct Numbers {
        std::int64_t size() const { return 3; }
        std::int64_t get(std::int64_t i) const { return i; }
    };
    data::BatchLoader batches(Numbers{}, {.sampler = Failing{&batch_calls}});
    CHECK(first_of(batches, [](const Tensor& b) { return b.select(0, 0).item<std::int64_t>(); }) == 0);
}

TEST_CASE("samplers and orders: too little memory and moved-from objects are errors", "[sampler]") {
    constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();
    const data::WeightedRandomSampler many({1, 2}, {.num_samples = largest});
    CHECK_THROWS_AS(many.order(0), Error);
    CHECK_THROWS_AS(data::train_test_split(largest), Error);
    CHECK_THROWS_AS(data::train_test_split(largest, {.shuffle = false}), Error);
    data::WeightedRandomSampler from({1, 2});
    const data::WeightedRandomSampler to = std::move(from);
    CHECK(to.order(0).numel() == 2);
    CHECK_THROWS_WITH(from.order(0), Catch::Contains("moved from"));
}
