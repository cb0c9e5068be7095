// Batches of several ranks, and loops that resume where another one has stopped.
#include <catch2/catch.hpp>

#include "mezzo/data/loader.h"
#include "mezzo/ops.h"
#include "tests/data/test_image.h"
#include "tests/support/support.h"

using namespace mezzo;
using namespace mezzo::test;
using Catch::Matchers::Contains;

namespace {

data::DataLoaderOptions augmented(const data::Shard& shard = {}) {
    return {.batch_size = 8,
            .shuffle = true,
            .seed = 5,
            .shard = shard,
            .transforms = {data::RandomCrop{.size = 6, .padding = 2}, data::ColorJitter{.brightness = 0.4}},
            .mean = 0.5,
            .stddev = 0.25};
}

// One row of one batch: its values, then its label.
using Row = std::vector<float>;

std::vector<Row> rows_of(const data::Batch& batch) {
    std::vector<Row> rows;
    const std::vector<std::int64_t> labels = batch.y.to_vector<std::int64_t>();
    for (std::size_t i = 0; i < labels.size(); ++i) {
        rows.push_back(batch.x.select(0, std::int64_t(i)).to_vector<float>());
        rows.back().push_back(float(labels[i]));
    }
    return rows;
}

// The rest of an epoch, batch by batch, with the rows of all ranks.
std::vector<std::vector<Row>> seen_by(int ranks, const data::Dataset& set, data::DataLoaderOptions options,
                                      const data::LoaderPosition& from = {}) {
    std::vector<std::vector<Row>> seen;
    for (int rank = 0; rank < ranks; ++rank) {
        options.shard = {.rank = rank, .size = ranks};
        data::DataLoader loader(set, options);
        loader.set_position(from);
        std::size_t i = 0;
        for (const data::Batch& batch : loader) {
            if (rank == 0) seen.emplace_back();
            REQUIRE(i < seen.size());
            const std::vector<Row> rows = rows_of(batch);
            REQUIRE_FALSE(rows.empty());
            if (batch.weight > 0) seen[i].insert(seen[i].end(), rows.begin(), rows.end());
            ++i;
        }
        REQUIRE(i == seen.size());
    }
    return seen;
}

}  // namespace

TEST_CASE("shard: slices make up every batch in order, and weights add up to the number of ranks",
          "[shard]") {
    for (int size = 1; size <= 5; ++size) {
        CHECK(data::Shard{.rank = size - 1, .size = size}.slice(0).count == 0);
        for (std::int64_t rows = 1; rows <= 23; ++rows) {
            CAPTURE(size, rows);
            std::int64_t next = 0, most = 0, least = rows;
            double weights = 0;
            for (int rank = 0; rank < size; ++rank) {
                const data::ShardRows slice = data::Shard{.rank = rank, .size = size}.slice(rows);
                weights += slice.weight;
                if (slice.weight == 0) {
                    CHECK(rank >= rows);
                    CHECK(slice.first == rows - 1);
                    CHECK(slice.count == 1);
                    continue;
                }
                CHECK(slice.first == next);
                next += slice.count;
                most = std::max(most, slice.count);
                least = std::min(least, slice.count);
                if (rows % size == 0) CHECK(slice.weight == 1);
            }
            CHECK(next == rows);
            CHECK(most - least <= 1);
            CHECK(weights == Approx(size).epsilon(1e-14));
        }
    }
}

TEST_CASE("shard: what is no shard is refused", "[shard]") {
    for (const data::Shard& wrong : {data::Shard{-1, 2}, data::Shard{2, 2}, data::Shard{0, 0}}) {
        CHECK_THROWS_WITH(wrong.slice(8), Contains("Shard: rank " + std::to_string(wrong.rank) + " of " +
                                                   std::to_string(wrong.size)));
        CHECK_THROWS_WITH(data::DataLoader({zeros({3, 1}), arange(3)}, {.shard = wrong}),
                          Contains("Shard: rank "));
    }
    CHECK_THROWS_WITH((data::Shard{}.slice(-1)), Contains("Shard: a batch of -1 rows"));
}

TEST_CASE("loader: the batches of all ranks are those of one process, in order", "[shard]") {
    const data::Dataset set = some_images(29, 6);
    for (const bool drop_last : {false, true}) {
        data::DataLoaderOptions options = augmented();
        options.drop_last = drop_last;
        const auto alone = seen_by(1, set, options);
        REQUIRE(alone.size() == (drop_last ? 3 : 4));
        REQUIRE(alone.back().size() == (drop_last ? 8 : 5));
        for (const int ranks : {2, 3, 4, 7}) {
            CAPTURE(drop_last, ranks);
            CHECK(seen_by(ranks, set, options) == alone);  // with 7 ranks, two of them repeat the last row
        }
    }
}

TEST_CASE("loader: weighted means over the ranks are the mean over the batch", "[shard]") {
    const data::Dataset set{(arange(13) * arange(13)).to(float32).reshape({13, 1}), arange(13)};
    for (const int ranks : {1, 2, 3, 5, 8}) {
        std::vector<double> means(3, 0), whole;
        for (int rank = 0; rank < ranks; ++rank) {
            data::DataLoader loader(set, {.batch_size = 5, .shard = {rank, ranks}});
            std::size_t i = 0;
            for (const data::Batch& batch : loader)
                means.at(i++) += mean(batch.x).item<double>() * batch.weight / ranks;
        }
        data::DataLoader loader(set, {.batch_size = 5});
        for (const auto& [x, y] : loader) whole.push_back(mean(x).item<double>());
        for (std::size_t i = 0; i < 3; ++i) CHECK(means[i] == Approx(whole[i]).epsilon(1e-6));
    }
}

TEST_CASE("loader: a resumed epoch yields exactly the batches that are left, on any number of ranks",
          "[shard]") {
    const data::Dataset set = some_images(29, 6);
    for (const Device device : devices())
        for (const int ahead : {0, 2}) {
            data::DataLoaderOptions options = augmented({.rank = 1, .size = 2});
            options.device = device;
            options.prefetch = ahead;
            for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
                const auto all = seen_by(1, set, options, {.epoch = epoch});
                for (std::size_t stop = 1; stop <= all.size(); ++stop) {
                    CAPTURE(device.index, ahead, epoch, stop);
                    data::DataLoader interrupted(set, options);
                    interrupted.set_epoch(epoch);
                    std::size_t done = 0;
                    for (const data::Batch& batch : interrupted) {
                        CHECK(batch.weight > 0);
                        if (++done == stop) break;
                    }
                    const data::LoaderPosition at = interrupted.position();
                    CHECK(at ==
                          data::LoaderPosition{epoch, std::min<std::int64_t>(29, 8 * std::int64_t(stop))});
                    for (const int ranks : {1, 2, 3})
                        CHECK(seen_by(ranks, set, options, at) ==
                              std::vector(all.begin() + std::ptrdiff_t(stop), all.end()));
                }
            }
        }
}

TEST_CASE("loader: a position between batches of another size is continued, too", "[shard]") {
    data::DataLoaderOptions options{.batch_size = 4, .shuffle = true, .seed = 3};
    const data::Dataset set{arange(23).to(float32).reshape({23, 1}), arange(23)};
    const auto joined = [](const std::vector<std::vector<Row>>& batches) {
        std::vector<Row> rows;
        for (const auto& batch : batches) rows.insert(rows.end(), batch.begin(), batch.end());
        return rows;
    };
    const std::vector<Row> all = joined(seen_by(1, set, options));
    options.batch_size = 6;
    const auto rest = seen_by(2, set, options, {.epoch = 0, .samples = 8});
    CHECK(rest.size() == 3);
    CHECK(joined(rest) == std::vector(all.begin() + 8, all.end()));
    options.drop_last = true;
    CHECK(seen_by(2, set, options, {.epoch = 0, .samples = 8}).size() == 2);
}

TEST_CASE("loader: the position is behind the batch in hand, and then at the next epoch", "[shard]") {
    using At = data::LoaderPosition;
    data::DataLoader loader({zeros({5, 1}), arange(5)}, {.batch_size = 2});
    CHECK(loader.position() == At{0, 0});
    std::vector<std::int64_t> samples;
    for (const data::Batch& batch : loader) {
        CHECK(batch.weight == 1);
        CHECK(loader.position().epoch == 0);
        samples.push_back(loader.position().samples);
    }
    CHECK(samples == std::vector<std::int64_t>{2, 4, 5});
    CHECK(loader.position() == At{1, 0});
    for (const data::Batch& batch : loader)
        if (batch.y.size(0) == 2) break;
    CHECK(loader.position() == At{1, 2});
    CHECK(loader.epoch() == 2);  // the next loop is the next epoch
    auto before = loader.begin();
    static_cast<void>(*before);
    auto now = loader.begin();
    static_cast<void>(*now);
    CHECK(loader.position() == At{3, 2});
    ++before;
    static_cast<void>(*before);  // of an epoch that is not the last one
    CHECK(loader.position() == At{3, 2});

    loader.set_position({.epoch = 4, .samples = 5});
    CHECK(loader.position() == At{4, 5});
    CHECK(loader.epoch() == 4);
    for (const data::Batch& batch : loader) FAIL("a batch of " << batch.y.size(0) << " rows is left");
    CHECK(loader.position() == At{5, 0});
    for (const At& wrong : {At{-1, 0}, At{0, -1}, At{0, 6}})
        CHECK_THROWS_WITH(loader.set_position(wrong), Contains("; an epoch has 5 samples"));
    CHECK_THROWS_AS(loader.set_epoch(-1), Error);
    CHECK(loader.position() == At{5, 0});

    data::DataLoader whole_batches({zeros({5, 1}), arange(5)}, {.batch_size = 2, .drop_last = true});
    whole_batches.set_position({.epoch = 0, .samples = 4});
    for (const data::Batch& batch : whole_batches) FAIL("a batch of " << batch.y.size(0) << " rows is left");
    CHECK(whole_batches.position() == At{1, 0});
    data::DataLoader empty({zeros({0, 1}), arange(0)}, {.shard = {1, 3}});
    for (const data::Batch& batch : empty) FAIL("a batch of " << batch.y.size(0) << " rows");
    CHECK(empty.position() == At{1, 0});
}

TEST_CASE("loader: batch transforms see the rank's rows and do not lose the weight", "[shard]") {
    data::DataLoader loader({arange(5).to(float32).reshape({5, 1}), arange(5)},
                            {.batch_size = 5,
                             .shard = {1, 2},
                             .batch_transforms = {[](const data::Batch& batch, data::TransformRandom&) {
                                 return data::Batch{batch.x * 10.0, batch.y};
                             }}});
    for (const data::Batch& batch : loader) {
        CHECK(doubles(batch.x) == std::vector<double>{30, 40});
        CHECK(batch.weight == Approx(2 * 2 / 5.0));
        const auto& [x, y] = batch;
        CHECK(x.shape() == Shape{2, 1});
        CHECK(y.shape() == Shape{2});
    }
    data::Batch batch{zeros({1}), ones({1})};
    auto& [x, y] = batch;
    x = y;
    CHECK(batch.x.item<float>() == 1);
    const auto [taken, other] = std::move(batch);
    CHECK(taken.item<float>() == other.item<float>());
}
