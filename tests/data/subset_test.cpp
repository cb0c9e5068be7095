// Subsets, random parts, unions of data sets, the default batch function, and shards of a BatchLoader.
#include <atomic>
#include <catch2/catch.hpp>
#include <set>
#include <stdexcept>
#include <string>

#include "mezzo/data/images.h"
#include "mezzo/data/subset.h"
#include "mezzo/ops.h"

using namespace mezzo;
using Catch::Matchers::Contains;
using data::BatchLoader;
using Integers = std::vector<std::int64_t>;

namespace {

struct Squares {
    std::int64_t count = 10, bad = -1;
    std::atomic<int>* copies = nullptr;
    std::int64_t size() const { return count; }
    std::int64_t get(std::int64_t i) const {
        if (i == bad) throw std::runtime_error("square " + std::to_string(i) + " is bad");
        return i * i;
    }
};

// Images of one pixel, with their value as label.
struct Pixels {
    std::int64_t first = 0, count = 4;
    std::int64_t size() const { return count; }
    Tensor image(std::int64_t i) const { return full({1, 1, 1}, first + i, {.dtype = uint8}); }
    std::int64_t label(std::int64_t i) const { return first + i; }
};

struct Numbers {
    std::int64_t count = 10, bad = -1;
    struct Stream {
        std::int64_t at, end, bad;
        std::optional<std::int64_t> next() {
            if (at == bad) throw std::runtime_error("number " + std::to_string(at) + " is bad");
            return at < end ? std::optional(at++) : std::nullopt;
        }
    };
    Stream stream(std::int64_t epoch) const { return {epoch * 100, epoch * 100 + count, bad}; }
};

Integers integers(const Tensor& x) { return x.to_vector<std::int64_t>(); }
template <class Loader> Integers all_of(Loader& loader) {
    Integers all;
    for (const auto& batch : loader)
        for (const std::int64_t value : batch.template to_vector<std::int64_t>()) all.push_back(value);
    return all;
}
template <class D> Integers samples_of(const D& dataset) {
    Integers all;
    for (std::int64_t i = 0; i < dataset.size(); ++i) all.push_back(dataset.get(i));
    return all;
}

}  // namespace

TEST_CASE("subset: samples at indices, in a loader", "[data]") {
    const data::Subset some(Squares{}, {7, 0, 3, 3});
    CHECK(samples_of(some) == Integers{49, 0, 9, 9});
    CHECK(some.dataset().size() == 10);
    const data::Subset again(some, {1, 2});  // a subset of a subset
    CHECK(samples_of(again) == Integers{0, 9});
    BatchLoader loader(some, {.batch_size = 3});
    CHECK(all_of(loader) == Integers{49, 0, 9, 9});
    CHECK_THROWS_WITH(data::Subset(Squares{}, {0, 10}), Contains("Subset: index 10 of 10 samples"));
    CHECK_THROWS_WITH(data::Subset(Squares{}, {-1}), Contains("index -1"));
    CHECK_THROWS_WITH(some.get(4), Contains("index 4 of 4"));
    data::DataLoader images(data::Subset(Pixels{}, {3, 1}), {.batch_size = 2});
    for (const data::Batch& batch : images) {
        CHECK(integers(batch.y) == Integers{3, 1});
        CHECK(batch.x.shape() == Shape{2, 1, 1, 1});
    }
}

TEST_CASE("random_split: lengths and shares", "[data]") {
    const auto sizes_of = [](std::int64_t n, const std::vector<Scalar>& lengths) {
        Integers sizes;
        std::set<std::int64_t> seen;
        for (const Integers& part : data::random_split(n, lengths)) {
            sizes.push_back(std::int64_t(part.size()));
            seen.insert(part.begin(), part.end());
        }
        CHECK(std::int64_t(seen.size()) == n);
        CHECK((n == 0 || (*seen.begin() == 0 && *seen.rbegin() == n - 1)));
        return sizes;
    };
    CHECK(sizes_of(10, {3, 7}) == Integers{3, 7});
    CHECK(sizes_of(30, {0.3, 0.3, 0.4}) == Integers{9, 9, 12});
    CHECK(sizes_of(11, {0.5, 0.25, 0.25}) == Integers{6, 3, 2});  // the remainder goes round
    CHECK(sizes_of(5, {0.7, 0.2, 0.1}) == Integers{4, 1, 0});
    CHECK(sizes_of(10, {1}) == Integers{10});  // a share, as in PyTorch
    CHECK(sizes_of(0, {0, 0}) == Integers{0, 0});
    CHECK(sizes_of(1, {1, 0}) == Integers{1, 0});
    const std::int64_t n = 10;
    CHECK(sizes_of(n, {n - 4, 4}) == Integers{6, 4});
    CHECK(data::random_split(20, {15, 5}) == data::random_split(20, {0.75, 0.25}));
    CHECK(data::random_split(20, {15, 5}) != data::random_split(20, {15, 5}, {.seed = 1}));
    CHECK_THROWS_WITH(data::random_split(10, {3, 6}), Contains("add up to 9, and there are 10 samples"));
    CHECK_THROWS_WITH(data::random_split(10, {8, 8}), Contains("add up to 16"));
    CHECK_THROWS_WITH(data::random_split(10, {0.5, 0.4}), Contains("a length is 0.5"));
    CHECK_THROWS_WITH(data::random_split(10, {1.5, -0.5}), Contains("a length is 1.5"));
    CHECK_THROWS_WITH(data::random_split(10, {-1, 11}), Contains("a length is -1"));
    CHECK_THROWS_WITH(data::random_split(10, {}), Contains("add up to 0"));
    CHECK_THROWS_WITH(data::random_split(10, {NAN}), Contains("a length is nan"));
}

TEST_CASE("random_split: of data sets", "[data]") {
    const auto parts = data::random_split(Squares{.count = 100}, {0.9, 0.1}, {.seed = 3});
    REQUIRE(parts.size() == 2);
    CHECK(&parts[0].dataset() == &parts[1].dataset());  // shared
    Integers all = samples_of(parts[0]), rest = samples_of(parts[1]);
    CHECK(rest.size() == 10);
    all.insert(all.end(), rest.begin(), rest.end());
    std::sort(all.begin(), all.end());
    CHECK(all == samples_of(Squares{.count = 100}));
    const data::Dataset rows{arange(6, {.dtype = float32}).reshape({6, 1}), arange(6, {.dtype = int64})};
    const auto datasets = data::random_split(rows, {4, 2});
    CHECK(datasets[0].x.shape() == Shape{4, 1});
    CHECK(integers(datasets[1].x.to(int64)) == integers(datasets[1].y));
}

TEST_CASE("concatenated data sets: one after another", "[data]") {
    const data::ConcatDataset both(
        std::vector{Squares{.count = 3}, Squares{.count = 0}, Squares{.count = 2}});
    CHECK(samples_of(both) == Integers{0, 1, 4, 0, 1});
    CHECK_THROWS_WITH(both.get(5), Contains("ConcatDataset: index 5 of 5 samples"));
    CHECK_THROWS_WITH(both.get(-1), Contains("index -1"));
    CHECK_THROWS_WITH(data::ConcatDataset(std::vector<Squares>{}), Contains("there are no data sets"));
    CHECK_THROWS_WITH(data::ConcatDataset(std::vector{Squares{.count = -1}}), Contains("data set 0 is -1"));
    data::DataLoader images(data::ConcatDataset(std::vector{Pixels{0, 2}, Pixels{100, 3}}),
                            {.batch_size = 9});
    for (const data::Batch& batch : images) CHECK(integers(batch.y) == Integers{0, 1, 100, 101, 102});
    for (const int workers : {0, 2}) {
        BatchLoader loader(both, {.batch_size = 2, .shuffle = true, .seed = 4, .num_workers = workers});
        const Integers epoch = all_of(loader), second = all_of(loader);
        loader.set_position({.epoch = 0, .samples = 2});
        CHECK(all_of(loader) == Integers(epoch.begin() + 2, epoch.end()));
        CHECK(all_of(loader) == second);
        BatchLoader bad(data::ConcatDataset(std::vector{Squares{}, Squares{.bad = 1}}),
                        {.batch_size = 4, .num_workers = workers});
        CHECK_THROWS_WITH(all_of(bad), Contains("square 1 is bad"));
        CHECK(bad.position().samples == 8);
    }
}

TEST_CASE("default batches: tensors, numbers, pairs, tuples and others", "[data]") {
    const data::DefaultCollate collate;
    CHECK(collate(std::vector{ones({2}), zeros({2})}).shape() == Shape{2, 2});
    CHECK_THROWS_AS(collate(std::vector{ones({2}), zeros({3})}), Error);
    CHECK(collate(std::vector{1, 2}).dtype() == int64);
    CHECK(collate(std::vector{1.f, 2.f}).dtype() == float32);
    CHECK(collate(std::vector{1.0, 2.0}).dtype() == float64);
    CHECK(collate(std::vector{true, false}).dtype() == boolean);
    CHECK(collate(std::vector{true, false}).to_vector<bool>() == std::vector{true, false});
    CHECK(collate(std::vector<std::string>{"a", "b"}) == std::vector<std::string>{"a", "b"});
    const auto [x, y] = collate(std::vector{std::pair(ones({3}), 4), std::pair(zeros({3}), 5)});
    CHECK(x.shape() == Shape{2, 3});
    CHECK(integers(y) == Integers{4, 5});
    const auto [a, b, c] = collate(std::vector{std::tuple(1, std::string("z"), std::pair(2.f, 3))});
    CHECK(integers(a) == Integers{1});
    CHECK(b == std::vector<std::string>{"z"});
    CHECK(integers(c.second) == Integers{3});
    const Tensors lists = collate(std::vector<Tensors>{{ones({2}), ones({})}, {ones({2}), ones({})}});
    CHECK(lists[0].shape() == Shape{2, 2});
    CHECK(lists[1].shape() == Shape{2});
    CHECK_THROWS_WITH(collate(std::vector<Tensors>{{ones({2})}, {}}), Contains("samples of 1 and 0 tensors"));
}

TEST_CASE("rows of tensors: three tensors in a loader, copied ahead", "[data]") {
    const Tensor x = arange(12, {.dtype = float32}).reshape({6, 2}), y = arange(6), z = ones({6});
    BatchLoader loader(data::TensorDataset({x, y, z}), {.batch_size = 4, .shuffle = true});
    Integers seen;
    for (const Tensors& batch : data::prefetch(loader, {.device = cpu_device})) {
        REQUIRE(batch.size() == 3);
        CHECK(batch[0].shape() == Shape{batch[1].size(0), 2});
        for (std::int64_t i = 0; i < batch[1].size(0); ++i) {
            seen.push_back(batch[1].select(0, i).item<std::int64_t>());
            CHECK(batch[0].select(0, i).select(0, 0).item<double>() == 2 * double(seen.back()));
        }
    }
    std::sort(seen.begin(), seen.end());
    CHECK(seen == Integers{0, 1, 2, 3, 4, 5});
    CHECK_THROWS_WITH(data::TensorDataset({}), Contains("there are no tensors"));
    CHECK_THROWS_WITH(data::TensorDataset({x, Tensor()}), Contains("undefined"));
    CHECK_THROWS_WITH(data::TensorDataset({x, ones({5})}), Contains("differ in their first sizes"));
    CHECK_THROWS_WITH(data::TensorDataset({x}).get(6), Contains("index 6 of 6"));
}

TEST_CASE("default batches: pairs are copied to the device", "[data]") {
    struct Pairs {
        std::int64_t size() const { return 3; }
        std::pair<Tensor, std::int64_t> get(std::int64_t i) const { return {full({2}, i), i}; }
    };
    BatchLoader loader(Pairs{}, {.batch_size = 2});
    double total = 0;
    for (const auto& [x, y] : data::prefetch(loader, {.device = best_device()}))
        total += sum(x).item<double>() + sum(y).item<double>();
    CHECK(total == 9);
}

namespace {

// The batches of all ranks, concatenated batch by batch, and their weights.
template <class D> std::pair<Integers, double> over_ranks(const D& dataset, int ranks, int workers,
                                                          const data::LoaderPosition& from) {
    const auto list = [](Integers samples) { return samples; };
    std::vector<std::vector<Integers>> batches;
    double weights = 0;
    for (int rank = 0; rank < ranks; ++rank) {
        data::BatchLoaderOptions options{.batch_size = 4, .shard = {.rank = rank, .size = ranks}};
        options.num_workers = workers;
        BatchLoader loader(dataset, list, options);
        loader.set_position(from);
        std::size_t index = 0;
        for (const Integers& batch : loader) {
            if (batches.size() <= index) batches.emplace_back();
            if (loader.weight() > 0) batches[index].push_back(batch);
            weights += loader.weight();
            ++index;
            CHECK((loader.position().samples - from.samples) % 4 <= 2);  // counts the samples of all ranks
        }
        CHECK(index == batches.size());
        CHECK(loader.position() == data::LoaderPosition{.epoch = from.epoch + 1});
    }
    Integers all;
    for (const auto& batch : batches)
        for (const Integers& part : batch) all.insert(all.end(), part.begin(), part.end());
    return {all, weights};
}

}  // namespace

TEST_CASE("shards of a batch loader: the ranks' batches are those of one process", "[data]") {
    for (const int workers : {0, 2})
        for (const int ranks : {1, 2, 3, 4}) {
            INFO(workers << " workers, " << ranks << " ranks");
            const auto [mapped, weights] = over_ranks(Squares{}, ranks, workers, {});
            CHECK(mapped == samples_of(Squares{}));
            CHECK(weights == Approx(3 * ranks));  // three batches, the last of 2 samples
            const auto [streamed, more] = over_ranks(Numbers{}, ranks, workers, {.epoch = 1, .samples = 4});
            CHECK(streamed == Integers{104, 105, 106, 107, 108, 109});
            CHECK(more == Approx(2 * ranks));
        }
    CHECK_THROWS_AS(BatchLoader(Squares{}, {.shard = {.rank = 2, .size = 2}}), Error);
}

TEST_CASE("streams with workers: errors come with their batch, and a loop ends early", "[data]") {
    for (const int workers : {0, 1, 3}) {
        BatchLoader bad(Numbers{.bad = 6}, {.batch_size = 2, .num_workers = workers});
        Integers seen;
        const auto read = [&] {
            for (const Tensor& batch : bad)
                for (const std::int64_t value : integers(batch)) seen.push_back(value);
        };
        CHECK_THROWS_WITH(read(), "number 6 is bad");
        CHECK(seen == Integers{0, 1, 2, 3, 4, 5});
        BatchLoader endless(Numbers{.count = std::int64_t(1) << 40},
                            {.batch_size = 8, .num_workers = workers});
        for (const Tensor& batch : endless) {
            CHECK(batch.numel() == 8);
            break;
        }
        CHECK(endless.position().samples == 8);
    }
}
