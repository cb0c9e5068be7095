// Worker threads behind the loaders: the same batches for any number of them, errors, resumption, streams.
#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <numeric>
#include <set>
#include <thread>

#include "mezzo/autocast.h"
#include "mezzo/autograd.h"
#include "mezzo/data/batch_loader.h"
#include "mezzo/data/loader.h"
#include "mezzo/ops.h"
#include "tests/support/own_process.h"

using namespace mezzo;
using Catch::Matchers::Contains;
using data::BatchLoader;
using Integers = std::vector<std::int64_t>;

namespace {

// Words of different lengths; one of them may be bad.
struct Words {
    std::int64_t count = 23, bad = -1;
    std::int64_t size() const { return count; }
    std::string get(std::int64_t i) const {
        if (i == bad) throw std::runtime_error("word " + std::to_string(i) + " is bad");
        return std::string(std::size_t(i % 5 + 1), char('a' + i % 26));
    }
};

std::string join(std::vector<std::string> words) {
    std::string text;
    for (const std::string& word : words) text += word + " ";
    return text;
}

// A stream of the numbers from 0 on, which starts elsewhere in each epoch.
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

template <class Loader> auto batches_of(Loader& loader) {
    std::vector<typename Loader::Batch> result;
    for (auto& batch : loader) result.push_back(batch);
    return result;
}

data::DataLoaderOptions image_options(int workers) {
    return {.batch_size = 4,
            .shuffle = true,
            .seed = 7,
            .transforms = {data::RandomCrop{.size = 6, .padding = 2}, data::RandomHorizontalFlip{},
                           data::ColorJitter{.brightness = 0.3}},
            .mean = 0.4,
            .stddev = 0.3,
            .batch_transforms = {data::MixUp{.num_classes = 3}},
            .num_workers = workers,
            .prefetch_factor = 2};
}
data::Dataset images(std::int64_t n) {
    std::vector<std::uint8_t> x(std::size_t(n * 8 * 8 * 3));
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::uint8_t(i * 37 % 251);
    Integers y(static_cast<std::size_t>(n));
    for (std::size_t i = 0; i < y.size(); ++i) y[i] = std::int64_t(i % 3);
    return {Tensor::from(x, {n, 8, 8, 3}), Tensor::from(y, {n})};
}
std::vector<std::vector<double>> numbers_of(data::DataLoader& loader) {
    std::vector<std::vector<double>> result;
    for (const data::Batch batch : loader) {
        result.push_back(batch.x.to_vector<double>());
        for (const double v : batch.y.to_vector<double>()) result.back().push_back(v);
    }
    return result;
}

}  // namespace

TEST_CASE("workers: DataLoader gives the same batches with any number of them", "[data]") {
    data::DataLoader plain(images(23), image_options(0));
    std::vector<std::vector<std::vector<double>>> epochs{numbers_of(plain), numbers_of(plain)};
    CHECK(epochs[0].size() == 6);
    CHECK(epochs[0] != epochs[1]);
    for (const int workers : {1, 2, 5}) {
        data::DataLoader loader(images(23), image_options(workers));
        CHECK(numbers_of(loader) == epochs[0]);
        CHECK(numbers_of(loader) == epochs[1]);
        // Starts in the middle of an epoch, then ends a loop early, whose workers have made more batches.
        for (std::int64_t at = 0; at <= 6; ++at) {
            loader.set_position({.epoch = 1, .samples = std::min<std::int64_t>(at * 4, 23)});
            CHECK(numbers_of(loader) == std::vector(epochs[1].begin() + at, epochs[1].end()));
            loader.set_epoch(0);
            std::int64_t taken = 0;
            for (auto it = loader.begin(); it != loader.end() && taken < at; ++it, ++taken)
                static_cast<void>(*it);
            if (at > 0) CHECK(loader.position().samples == (at == 6 ? 0 : at * 4));
        }
    }
    CHECK_THROWS_WITH(data::DataLoader(images(1), {.num_workers = -1}), Contains("num_workers is -1"));
    CHECK_THROWS_WITH(data::DataLoader(images(1), {.num_workers = 1, .prefetch_factor = 0}),
                      Contains("prefetch_factor 0"));
    data::DataLoader none(images(0), image_options(2));
    CHECK(numbers_of(none).empty());
}

TEST_CASE("workers: an exception comes with its batch, and the loop can go on", "[data]") {
    for (const int workers : {0, 1, 3}) {
        data::DataLoaderOptions options{.batch_size = 2, .num_workers = workers};
        options.transforms = {[](const Tensor& image) {
            if (image.to_vector<double>()[0] == 5) throw std::runtime_error("image 5 is broken");
            return image;
        }};
        std::vector<std::uint8_t> x(10);
        std::iota(x.begin(), x.end(), std::uint8_t{0});
        data::DataLoader loader({Tensor::from(x, {10, 1, 1, 1}), zeros({10}, {.dtype = int64})}, options);
        std::string seen;
        for (auto it = loader.begin(); it != loader.end(); ++it) {
            try {
                for (const double v : (*it).x.to_vector<double>())
                    seen += std::to_string(std::lround(v * 255)) + " ";
            } catch (const std::runtime_error& error) {
                seen += std::string(error.what()) + " ";
            }
        }
        CHECK(seen == "0 1 2 3 image 5 is broken 6 7 8 9 ");
    }
}

TEST_CASE("workers: they stay within their bound, and compute alone", "[data]") {
    struct Counted {
        std::atomic<int>* made;
        std::int64_t size() const { return 1000; }
        int get(std::int64_t i) const {
            ++*made;
            return int(i);
        }
    };
    std::atomic<int> made{0}, inside{0};
    std::set<std::thread::id> threads;
    std::mutex mutex;
    const auto collate = [&](std::vector<int> samples) {
        const std::lock_guard lock(mutex);
        threads.insert(std::this_thread::get_id());
        inside += grad_enabled();
        return samples[0];
    };
    BatchLoader loader(Counted{&made}, collate, {.batch_size = 1, .num_workers = 3, .prefetch_factor = 2});
    auto it = loader.begin();
    for (int i = 0; i < 20; ++i, ++it) {
        CHECK(*it == i);
        CHECK(made.load() <= i + 2 + 6);
    }
    const std::lock_guard lock(mutex);
    CHECK(!threads.contains(std::this_thread::get_id()));
    CHECK(threads.size() <= 3);
    CHECK(inside == 0);
}

TEST_CASE("batch loader: samples and batches of any type", "[data]") {
    const std::vector<std::string> first{"a bb ccc dddd eeeee ", "f gg hhh iiii jjjjj ",
                                         "k ll mmm nnnn ooooo ", "p qq rrr ssss ttttt ", "u vv www "};
    for (const int workers : {0, 1, 2, 4}) {
        const data::BatchLoaderOptions options{.batch_size = 5, .num_workers = workers};
        BatchLoader loader(Words{}, join, options);
        CHECK(loader.size() == 5);
        CHECK(batches_of(loader) == first);
        CHECK(loader.position() == data::LoaderPosition{.epoch = 1});
        for (std::int64_t at = 0; at < 5; ++at) {
            loader.set_position({.epoch = 3, .samples = 5 * at});
            CHECK(batches_of(loader) == std::vector(first.begin() + at, first.end()));
        }
        data::BatchLoaderOptions whole = options, shuffled = options;
        whole.drop_last = true;
        BatchLoader dropped(Words{}, join, whole);
        CHECK(dropped.size() == 4);
        CHECK(batches_of(dropped).size() == 4);
        shuffled.shuffle = true;
        BatchLoader random(Words{}, join, shuffled), again(Words{}, join, {.batch_size = 5, .shuffle = true});
        const auto epoch = batches_of(random);
        CHECK(epoch != first);
        CHECK(epoch == batches_of(again));
        CHECK(batches_of(random) != epoch);

        BatchLoader bad(Words{.bad = 12}, join, options);
        std::string seen;
        try {
            for (const std::string& text : bad) seen += text;
        } catch (const std::runtime_error& error) {
            seen += error.what();
        }
        CHECK(seen == first[0] + first[1] + "word 12 is bad");
        CHECK(bad.position().samples == 10);
        BatchLoader none(Words{.count = 0}, join, options);
        CHECK(batches_of(none).empty());
    }
    BatchLoader loader(Words{}, join);
    CHECK_THROWS_WITH(loader.set_position({.epoch = 0, .samples = 24}),
                      Contains("sample 24; an epoch has 23 samples"));
    CHECK_THROWS_WITH(loader.set_position({.epoch = -1}), Contains("epoch -1"));
    CHECK_THROWS_WITH(BatchLoader(Words{}, join, {.batch_size = 0}), Contains("batch_size is 0"));
    CHECK_THROWS_WITH(BatchLoader(Words{}, join, {.num_workers = 2000}), Contains("num_workers is 2000"));
}

TEST_CASE("batch loader: streams, resumed in the middle", "[data]") {
    const auto list = [](const Integers& samples) { return samples; };
    for (const int workers : {0, 1, 3}) {
        const data::BatchLoaderOptions options{.batch_size = 4, .num_workers = workers};
        BatchLoader loader(Numbers{}, list, options);
        CHECK(batches_of(loader) == std::vector<Integers>{{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9}});
        CHECK(batches_of(loader) ==
              std::vector<Integers>{{100, 101, 102, 103}, {104, 105, 106, 107}, {108, 109}});
        for (auto& batch : loader)
            if (batch[0] == 204) break;
        CHECK(loader.position() == data::LoaderPosition{.epoch = 2, .samples = 8});
        loader.set_position(loader.position());
        CHECK(batches_of(loader) == std::vector<Integers>{{208, 209}});
        loader.set_position({.epoch = 0, .samples = 99});
        CHECK(batches_of(loader).empty());
        BatchLoader bad(Numbers{.bad = 6}, list, options);
        std::size_t seen = 0;
        const auto read = [&] {
            for (auto& batch : bad) seen += batch.size();
        };
        CHECK_THROWS_WITH(read(), "number 6 is bad");
        CHECK(seen == 4);
        BatchLoader whole(Numbers{}, list, {.batch_size = 4, .drop_last = true, .num_workers = workers});
        CHECK(batches_of(whole).size() == 2);
    }
    CHECK_THROWS_WITH(BatchLoader(Numbers{}, list, {.shuffle = true}),
                      Contains("a stream says its order itself"));
}

TEST_CASE("batch loader: a stream that has ended is not asked again", "[data]") {
    struct Countdown {
        struct Stream {
            int left;
            std::optional<int> next() {
                if (left < 0) throw std::logic_error("asked behind the end");
                if (left-- == 0) return std::nullopt;
                return left;
            }
        };
        Stream stream(std::int64_t) const { return {5}; }
    };
    const auto count = [](const std::vector<int>& samples) { return samples.size(); };
    for (const int workers : {0, 2}) {
        BatchLoader loader(Countdown{}, count, {.batch_size = 2, .num_workers = workers});
        CHECK(batches_of(loader) == std::vector<std::size_t>{2, 2, 1});
        loader.set_position({.epoch = 1, .samples = 9});
        CHECK(batches_of(loader).empty());
    }
}

TEST_CASE("length buckets: every sample once, batches of similar lengths", "[sampler]") {
    Integers lengths(1003);
    for (std::size_t i = 0; i < lengths.size(); ++i) lengths[i] = std::int64_t(i * i * 31 % 500);
    const auto padding = [&](const Integers& order) {
        std::int64_t lost = 0;
        for (std::size_t i = 0; i < order.size(); i += 10) {
            const std::size_t end = std::min(i + 10, order.size());
            std::int64_t longest = 0;
            for (std::size_t j = i; j < end; ++j) longest = std::max(longest, lengths[std::size_t(order[j])]);
            for (std::size_t j = i; j < end; ++j) lost += longest - lengths[std::size_t(order[j])];
        }
        return lost;
    };
    const data::LengthBucketSampler sampler(lengths, {.batch_size = 10, .bucket_batches = 20, .seed = 4});
    const Integers order = sampler.order(0).to_vector<std::int64_t>();
    Integers sorted = order, plain(lengths.size());
    std::sort(sorted.begin(), sorted.end());
    std::iota(plain.begin(), plain.end(), std::int64_t{0});
    CHECK(sorted == plain);
    CHECK(padding(order) * 5 < padding(plain));
    CHECK(sampler.order(0).to_vector<std::int64_t>() == order);
    CHECK(sampler.order(1).to_vector<std::int64_t>() != order);
    // Batches do not come by length.
    int rises = 0;
    for (std::size_t i = 10; i < 1000; i += 10)
        rises += lengths[std::size_t(order[i])] > lengths[std::size_t(order[i - 10])];
    CHECK(rises > 20);
    CHECK(rises < 80);
    const Integers by_length =
        data::LengthBucketSampler({3, 1, 2, 3}, {.shuffle = false}).order(0).to_vector<std::int64_t>();
    CHECK(by_length == Integers{0, 3, 2, 1});
    CHECK(data::LengthBucketSampler({}, {}).order(0).numel() == 0);
    CHECK(data::LengthBucketSampler({5, 6}, {.batch_size = 64}).order(0).numel() == 2);
    CHECK_THROWS_WITH(data::LengthBucketSampler({1, -1}), Contains("length 1 is -1"));
    CHECK_THROWS_WITH(data::LengthBucketSampler({1}, {.batch_size = 0}), Contains("batch_size is 0"));
}

TEST_CASE("workers: samples and batches are made outside of autocast and without gradients", "[data]") {
    struct Scopes {  // whether a sample was read where gradients are recorded or autocast is on
        struct Stream {
            int left;
            std::optional<bool> next() {
                if (left-- == 0) return std::nullopt;
                return grad_enabled() || amp::autocast_enabled(DeviceType::cpu);
            }
        };
        Stream stream(std::int64_t) const { return {4}; }
    };
    const auto product = [](std::vector<bool> samples) {
        samples.push_back(grad_enabled());
        check(std::none_of(samples.begin(), samples.end(), [](bool wrong) { return wrong; }),
              ErrorKind::state, "in a scope of the training");
        return matmul(ones({2, 2}), ones({2, 2}));
    };
    for (const int workers : {0, 1}) {
        data::BatchLoader loader(Scopes{}, product, {.batch_size = 2, .num_workers = workers});
        const amp::Autocast scope({.dtype = bfloat16});
        int batches = 0;
        for (const Tensor& batch : loader) {
            CHECK(batch.dtype() == float32);
            CHECK(amp::autocast_enabled(DeviceType::cpu));
            CHECK(grad_enabled());
            ++batches;
        }
        CHECK(batches == 2);
    }
}

namespace {

constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();
constexpr int left = 42;  // the exit status of a case that calls exit()

data::Dataset ten_rows() {
    return {arange(10, {.dtype = float32}).reshape({10, 1}), arange(10, {.dtype = int64})};
}

// Labels of all remaining batches.
template <class It> Integers labels_from(It it) {
    Integers all;
    for (; !(it == std::default_sentinel); ++it) {
        const auto more = (*it).y.template to_vector<std::int64_t>();
        all.insert(all.end(), more.begin(), more.end());
    }
    return all;
}

struct Many {
    std::int64_t count;
    std::int64_t size() const { return count; }
    std::int64_t get(std::int64_t i) const { return i; }
};

Integers as_they_are(Integers samples) { return samples; }

}  // namespace

TEST_CASE("loaders: iterators outlive the loader", "[data]") {
    for (const int workers : {0, 2}) {
        INFO(workers << " workers");
        std::optional<data::DataLoader> loader;
        loader.emplace(ten_rows(), data::DataLoaderOptions{.batch_size = 3, .num_workers = workers});
        auto it = loader->begin();
        CHECK((*it).y.to_vector<std::int64_t>() == Integers{0, 1, 2});
        loader.reset();
        ++it;
        CHECK(labels_from(std::move(it)) == Integers{3, 4, 5, 6, 7, 8, 9});

        std::optional<BatchLoader<Many, Integers (*)(Integers)>> other;
        other.emplace(Many{5}, as_they_are,
                      data::BatchLoaderOptions{.batch_size = 2, .num_workers = workers});
        auto batch = other->begin();
        other.reset();
        CHECK(*batch == Integers{0, 1});
        ++batch;
        CHECK(*batch == Integers{2, 3});
        ++batch;
        CHECK(*batch == Integers{4});
        ++batch;
        CHECK(batch == std::default_sentinel);
    }
}

TEST_CASE("loaders: a copy has a position of its own", "[data]") {
    data::DataLoader loader(ten_rows(), {.batch_size = 4});
    auto it = loader.begin();
    static_cast<void>(*it);
    data::DataLoader copy(loader);
    ++it;
    static_cast<void>(*it);
    CHECK(loader.position() == data::LoaderPosition{0, 8});
    CHECK(copy.position() == data::LoaderPosition{0, 4});
    CHECK(copy.epoch() == 1);
    copy = loader;
    CHECK(copy.position() == data::LoaderPosition{0, 8});
}

TEST_CASE("loaders: numbers at the end of int64", "[data]") {
    data::DataLoader loader(ten_rows(), {.batch_size = largest});
    loader.set_position({.epoch = 0, .samples = 3});
    CHECK(labels_from(loader.begin()) == Integers{3, 4, 5, 6, 7, 8, 9});
    CHECK(labels_from(loader.begin()).size() == 10);
    CHECK_THROWS_WITH(loader.set_epoch(largest), Contains("epochs are in [0, 2^62)"));
    CHECK_THROWS_WITH(loader.set_position({.epoch = std::int64_t(1) << 62}), Contains("DataLoader"));
    loader.set_epoch((std::int64_t(1) << 62) - 1);
    CHECK(labels_from(loader.begin()).size() == 10);

    BatchLoader many(Many{largest}, as_they_are, {.batch_size = 2});
    CHECK(many.size() == largest / 2 + 1);
    CHECK(*many.begin() == Integers{0, 1});  // without a list of all indices
    many.set_position({.epoch = 0, .samples = largest - 1});
    CHECK(*many.begin() == Integers{largest - 1});
    CHECK_THROWS_WITH(many.set_position({.epoch = largest}), Contains("epochs are in [0, 2^62)"));
    BatchLoader shuffled(Many{largest}, as_they_are, {.batch_size = 2, .shuffle = true});
    CHECK_THROWS_AS(shuffled.begin(), Error);
    BatchLoader negative(Many{-1}, as_they_are);
    CHECK_THROWS_WITH(negative.size(), Contains("size() of its data set or sampler is -1"));
    CHECK_THROWS_WITH(negative.begin(), Contains("size() of its data set or sampler is -1"));
}

TEST_CASE("loaders: after a break the next loop is the next epoch, or what is left after set_position()",
          "[data]") {
    data::DataLoader loader(ten_rows(), {.batch_size = 4});
    for (const auto& batch : loader)
        if (batch.y.defined()) break;
    CHECK(loader.position() == data::LoaderPosition{0, 4});
    SECTION("next epoch") {
        CHECK(labels_from(loader.begin()).size() == 10);
        CHECK(loader.position() == data::LoaderPosition{2, 0});
    }
    SECTION("what is left") {
        loader.set_position(loader.position());
        CHECK(labels_from(loader.begin()) == Integers{4, 5, 6, 7, 8, 9});
        CHECK(loader.position() == data::LoaderPosition{1, 0});
    }
}

// ---- exit() while worker threads are at work

TEST_CASE("exit in a loop over a static loader", "[.child]") {
    static const std::vector<std::int64_t> factors(1000, 2);  // what a transform reads ends at exit(), too
    static data::DataLoader loader(
        data::Dataset{zeros({4000, 4, 4, 3}, {.dtype = uint8}), zeros({4000}, {.dtype = int64})},
        {.batch_size = 8,
         .transforms = {[](const Tensor& x) {
             std::int64_t sum = 0;
             for (const std::int64_t factor : factors) sum += factor;
             return sum == 2000 ? x : Tensor();
         }},
         .num_workers = 2});
    int count = 0;
    for (const data::Batch& batch : loader)
        if (batch.x.defined() && ++count == 5) std::exit(left);
}

TEST_CASE("exit in a loop over a static batch loader", "[.child]") {
    static BatchLoader loader(Words{.count = 100000}, join, {.batch_size = 4, .num_workers = 2});
    int count = 0;
    for (const std::string& batch : loader)
        if (!batch.empty() && ++count == 5) std::exit(left);
}

TEST_CASE("exit in a worker thread", "[.child]") {
    static std::atomic<int> count{0};
    BatchLoader loader(Words{.count = 100000},
                       [](std::vector<std::string> words) {
                           if (++count == 20) std::exit(left);
                           return join(std::move(words));
                       },
                       {.batch_size = 4, .num_workers = 3});
    for (const std::string& batch : loader) static_cast<void>(batch);
}

TEST_CASE("exit where a stream is read", "[.child]") {
    struct Stream {
        struct Reader {
            std::int64_t at = 0;
            std::optional<std::int64_t> next() {
                if (++at == 50) std::exit(left);
                return at;
            }
        };
        Reader stream(std::int64_t) const { return {}; }
    };
    BatchLoader loader(Stream{}, as_they_are, {.batch_size = 4, .num_workers = 3});
    for (const Integers& batch : loader) static_cast<void>(batch);
}

TEST_CASE("loaders: exit() ends the worker threads first", "[data]") {
    for (const char* name :
         {"exit in a loop over a static loader", "exit in a loop over a static batch loader",
          "exit in a worker thread", "exit where a stream is read"}) {
        INFO(name);
        for (int i = 0; i < 3; ++i) CHECK(test::exit_status_of_case(name) == left);
    }
}
