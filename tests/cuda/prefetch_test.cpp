// Prefetching batches to the CUDA device, real or emulated: the same batches, in the same order, with the
// same exceptions as without prefetching.
#include <catch2/catch.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/tensor_impl.h"
#include "mezzo/data/batch_loader.h"
#include "mezzo/data/loader.h"
#include "mezzo/data/prefetch.h"
#include "mezzo/data/transforms.h"
#include "mezzo/mezzo.h"
#include "mezzo/text/tokenizer.h"
#include "tests/support/support.h"

namespace {

using namespace mezzo;
using Catch::Matchers::Contains;

const Device gpu{DeviceType::cuda};

// n samples of three elements: 10 i, 10 i + 1, 10 i + 2; labels i.
data::Dataset numbered(std::int64_t n) {
    std::vector<float> values;
    for (std::int64_t i = 0; i < n; ++i)
        for (int j = 0; j < 3; ++j) values.push_back(float(10 * i + j));
    return {Tensor::from(values, {n, 3}), arange(n)};
}

data::DataLoader loader_of(std::int64_t n, int prefetch, bool shuffle = true) {
    return data::DataLoader(
        numbered(n), {.batch_size = 4, .shuffle = shuffle, .seed = 3, .device = gpu, .prefetch = prefetch});
}

std::vector<double> values_of(const data::Batch& batch) {
    std::vector<double> values = batch.x.to_vector<double>();
    for (const double label : batch.y.to_vector<double>()) values.push_back(label);
    return values;
}

using Values = std::vector<std::vector<double>>;
Values values_of(const std::vector<data::Batch>& batches) {
    Values values;
    for (const data::Batch& batch : batches) values.push_back(values_of(batch));
    return values;
}

// Batches of one epoch, read when it is over, so that they must not have changed.
Values epoch(data::DataLoader& loader) {
    std::vector<data::Batch> held;
    for (const data::Batch& batch : loader) {
        CHECK(batch.x.device() == gpu);
        CHECK(batch.y.device() == gpu);
        held.push_back(batch);
    }
    return values_of(held);
}

// A range whose batch `bad` throws when it is read or, with in_step, when the iterator moves to it.
struct Faulty {
    int count = 5, bad = 2;
    bool in_step = false;
    struct Iterator {
        const Faulty* range;
        int i = 0;
        Tensor operator*() const {
            if (!range->in_step && i == range->bad) throw std::runtime_error("bad batch");
            return full({2}, i);
        }
        Iterator& operator++() {
            ++i;
            if (range->in_step && i == range->bad) throw std::runtime_error("bad step");
            return *this;
        }
        friend bool operator==(const Iterator& a, const Iterator& b) { return a.i == b.i; }
    };
    Iterator begin() const { return {this}; }
    Iterator end() const { return {this, count}; }
};

// Values and errors that a loop over the range gets. After an exception the loop goes on with the next batch;
// `again` reads each batch twice.
std::string walk(const Faulty& range, int ahead, bool again = false) {
    auto batches = data::prefetch(range, {.device = gpu, .ahead = ahead});
    std::string seen;
    auto it = batches.begin();
    for (int turns = 0; turns < 20 && it != batches.end(); ++turns) {
        bool good = true;
        for (int tries = again ? 2 : 1; tries > 0; --tries) {
            try {
                seen += std::to_string(int((*it).to_vector<float>()[0])) + " ";
            } catch (const std::runtime_error& error) {
                seen += std::string(error.what()) + " ";
                good = false;
            }
        }
        try {
            ++it;
        } catch (const std::runtime_error& error) {
            seen += std::string(error.what()) + " ";
        }
        if (!good && range.in_step) break;
    }
    return seen;
}

struct Pair {
    data::TokenBatch tokens;
    Tensor labels;
};
template <class F> void each_tensor(Pair& batch, F&& f) {
    data::each_tensor(batch.tokens, f);
    f(batch.labels);
}

}  // namespace

TEST_CASE("prefetch: a loader gives the same epochs", "[cuda][data]") {
    if (test::no_device()) return;
    for (const std::int64_t n : {0, 3, 4, 22, 23})
        for (const int ahead : {1, 2, 5, 30}) {
            CAPTURE(n, ahead);
            const LiveObjects before = live_objects();
            {
                data::DataLoader plain = loader_of(n, 0), prefetching = loader_of(n, ahead);
                for (int i = 0; i < 3; ++i) CHECK(epoch(prefetching) == epoch(plain));
                prefetching.set_epoch(1);
                plain.set_epoch(1);
                CHECK(epoch(prefetching) == epoch(plain));
                CHECK(prefetching.epoch() == 2);
            }
            CHECK(live_objects().tensors == before.tensors);
            CHECK(live_objects().storages == before.storages);
        }
}

TEST_CASE("prefetch: loops that end early, and several at once", "[cuda][data]") {
    if (test::no_device()) return;
    data::DataLoader plain = loader_of(23, 0), a = loader_of(23, 2), b = loader_of(23, 3);
    const Values first = epoch(plain), second = epoch(plain), third = epoch(plain);
    for (int stop = 0; stop < 3; ++stop) {
        a.set_epoch(0);
        std::vector<data::Batch> held;
        for (const data::Batch& batch : a) {
            held.push_back(batch);
            if (int(held.size()) > stop) break;
        }
        const Tensor other = full({4, 3}, 7, {.device = gpu});
        CHECK(epoch(a) == second);
        CHECK(values_of(held) == Values(first.begin(), first.begin() + stop + 1));
        CHECK(all_close(other, full({4, 3}, 7, {.device = gpu}), 0, 0));
    }
    // two loaders, and two loops of one loader, in turns
    a.set_epoch(0);
    auto one = a.begin(), two = b.begin(), three = a.begin();
    Values seen[3];
    while (!(one == a.end())) {
        seen[0].push_back(values_of(*one));
        seen[1].push_back(values_of(*two));
        seen[2].push_back(values_of(*three));
        ++one, ++two, ++three;
    }
    CHECK(seen[0] == first);
    CHECK(seen[1] == first);
    CHECK(seen[2] == second);
    // batches that nothing reads, and a batch that is read twice
    auto it = b.begin();
    ++it;
    CHECK(values_of(*it) == second[1]);
    CHECK(values_of(*it) == second[1]);
    ++it;
    ++it;
    CHECK(values_of(*it) == second[3]);
    auto moved = std::move(it);
    CHECK(values_of(*++moved) == second[4]);
    CHECK(epoch(b) == third);
}

TEST_CASE("prefetch: exceptions come with the batch they belong to", "[cuda][data]") {
    if (test::no_device()) return;
    for (const bool in_step : {false, true})
        for (int bad = 0; bad < 6; ++bad)
            for (const bool again : {false, true}) {
                const Faulty range{.bad = bad, .in_step = in_step};
                const std::string expected = walk(range, 0, again);
                CAPTURE(in_step, bad, again, expected);
                if (!in_step)
                    for (const int ahead : {1, 2, 9}) CHECK(walk(range, ahead, again) == expected);
            }
    CHECK(walk({.bad = 2}, 2) == "0 1 bad batch 3 4 ");
    // skipping it without reading it
    auto batches = data::prefetch(Faulty{.bad = 2}, {.device = gpu, .ahead = 2});
    auto it = batches.begin();
    *it;
    ++it, ++it, ++it;
    CHECK((*it).to_vector<float>()[0] == 3);
    // the batches before it come first, and then the exception
    CHECK(walk({.bad = 2, .in_step = true}, 2).rfind("0 1 bad step ", 0) == 0);
    CHECK(walk({.bad = 2, .in_step = true}, 9).rfind("0 1 bad step ", 0) == 0);
}

TEST_CASE("prefetch: ranges of any batches", "[cuda][data]") {
    if (test::no_device()) return;
    const Tensor numbers = arange(12, {.dtype = float32}).reshape({3, 4});
    for (const int ahead : {0, 2}) {
        CAPTURE(ahead);
        const data::PrefetchOptions options{.device = gpu, .ahead = ahead};
        // none, empty, not contiguous, on the device already, with history, one element
        const Tensor there = ones({2}, {.device = gpu}), history = ones({2}).set_requires_grad() * 2.0;
        std::vector<Tensors> lists(4,
                                   Tensors{Tensor(), zeros({0, 3}), numbers.t(), there, history, scalar(5)});
        int count = 0;
        for (const Tensors& batch : data::prefetch(lists, options)) {
            ++count;
            CHECK_FALSE(batch[0].defined());
            CHECK(batch[1].shape() == Shape{0, 3});
            CHECK(batch[1].device() == gpu);
            CHECK(batch[2].to_vector<float>() == numbers.t().to_vector<float>());
            CHECK(raw(batch[3]) == raw(there));
            CHECK_FALSE(batch[4].requires_grad());
            CHECK(batch[4].to_vector<float>() == std::vector<float>{2, 2});
            CHECK(batch[5].item<float>() == 5);
        }
        CHECK(count == 4);
        CHECK(lists[0][2].device() == cpu_device);  // the range keeps its own

        data::Encoding text;
        text.ids = {1, 2, 3};
        text.token_type_ids = {0, 0, 1};
        std::vector<Pair> pairs;
        for (int i = 0; i < 3; ++i)
            pairs.push_back({data::pad(std::vector{text}, {.length = 4 + i}), full({1}, i)});
        count = 0;
        for (const auto& [tokens, labels] : data::prefetch(std::move(pairs), options)) {
            CHECK(tokens.input_ids.shape() == Shape{1, 4 + count});
            CHECK(tokens.input_ids.to_vector<int>()[2] == 3);
            CHECK(tokens.attention_mask.to_vector<int>()[3] == 0);
            CHECK(labels.item<int>() == count++);
        }
        CHECK(count == 3);
    }
}

TEST_CASE("prefetch: one buffer that is filled again for each batch", "[cuda][data]") {
    if (test::no_device()) return;
    struct Source {
        Tensor buffer = zeros({3});
        int i = 0;
        Tensor operator*() const { return buffer.fill_(i); }
        Source& operator++() {
            ++i;
            return *this;
        }
        bool operator==(std::default_sentinel_t) const { return i == 7; }
    };
    std::vector<Tensor> held;
    data::PrefetchIterator it(Source(), std::default_sentinel, {.device = gpu, .ahead = 3});
    for (; it != std::default_sentinel; ++it) held.push_back(*it);
    REQUIRE(held.size() == 7);
    for (int i = 0; i < 7; ++i) CHECK(held[std::size_t(i)].to_vector<int>() == std::vector<int>(3, i));
}

namespace {

// Samples i with a name, of which DefaultCollate makes a tensor and a std::vector.
struct Named {
    std::int64_t size() const { return 10; }
    std::pair<Tensor, std::string> get(std::int64_t i) const {
        return {full({2}, double(i)), "sample " + std::to_string(i)};
    }
};

}  // namespace

TEST_CASE("prefetch: weight and position are those of the batch in use", "[cuda][data]") {
    for (const Device device : {cpu_device, gpu})
        for (const int ahead : {0, 2}) {
            if (device == gpu && test::no_device()) continue;
            CAPTURE(device, ahead);
            const data::BatchLoaderOptions options{.batch_size = 4, .shard = {.rank = 1, .size = 2}};
            data::BatchLoader plain(Named(), options), loader(Named(), options);
            std::vector<std::pair<double, std::int64_t>> expected, found;
            for (const auto& batch : plain) {
                CHECK(batch.second.size() <= 2);
                expected.emplace_back(plain.weight(), plain.position().samples);
            }
            auto batches = data::prefetch(loader, {.device = device, .ahead = ahead});
            CHECK(batches.position().samples == 0);
            for (const auto& [x, names] : batches) {
                CHECK((x.device() == device && std::int64_t(names.size()) == x.size(0)));
                found.emplace_back(batches.weight(), batches.position().samples);
            }
            CHECK(found == expected);
            CHECK(batches.position().epoch == 1);
            CHECK(batches.position().samples == 0);
            // After one batch the rest follows.
            (void)*batches.begin();
            CHECK((batches.position().epoch == 1 && batches.position().samples == 4));
            loader.set_position(batches.position());
            auto rest = data::prefetch(loader, {.device = device, .ahead = ahead});
            CHECK((*rest.begin()).second[0] == "sample 6");
        }
}

TEST_CASE("prefetch: on the CPU it changes nothing", "[data]") {
    data::DataLoader plain(numbered(10), {.batch_size = 4});
    data::DataLoader prefetching(numbered(10), {.batch_size = 4, .prefetch = 3});
    auto it = prefetching.begin();
    for (const data::Batch& batch : plain) {
        CHECK(values_of(*it) == values_of(batch));
        ++it;
    }
    CHECK(it == prefetching.end());
    const std::vector<Tensor> range{ones({2}), zeros({2})};
    auto batches = data::prefetch(range, {.device = cpu_device});
    CHECK(raw(*batches.begin()) == raw(range[0]));
}

TEST_CASE("prefetch: options are validated", "[data]") {
    CHECK_THROWS_WITH(data::DataLoader(numbered(3), {.prefetch = -2}), Contains("prefetch is -2"));
    const std::vector<Tensor> range{ones({2})};
    CHECK_THROWS_WITH(data::prefetch(range, {.device = cpu_device, .ahead = -2}).begin(),
                      Contains("ahead is -2"));
    CHECK_THROWS_WITH(data::prefetch(range, {.device = Device(DeviceType::cuda, 99)}).begin(),
                      Contains("no device cuda:99"));
}

TEST_CASE("prefetch: without memory for batches ahead they come in time", "[cuda][data]") {
    if (test::no_device()) return;
    const std::int64_t elements = 1 << 20;
    std::vector<Tensor> range;
    for (int i = 0; i < 6; ++i) range.push_back(full({elements}, i));
    empty_cache(gpu);
    const std::size_t batch = std::size_t(elements) * sizeof(float);
    for (const int room : {1, 2, 3}) {  // batches
        set_memory_limit(gpu, memory_stats(gpu).reserved + std::size_t(room) * batch);
        int i = 0;
        try {
            for (const Tensor& x : data::prefetch(range, {.device = gpu, .ahead = 3}))
                CHECK(x.slice(0, elements - 1, elements).item<int>() == i++);
        } catch (const Error& error) {
            FAIL_CHECK(error.what());
        }
        CHECK(i == 6);
        set_memory_limit(gpu, 0);
        empty_cache(gpu);
    }
    // not even one batch fits: the error comes with the batch, and a second try succeeds after memory was
    // freed
    set_memory_limit(gpu, memory_stats(gpu).reserved + batch);
    Tensors ballast;
    CHECK_THROWS_AS(
        [&] {
            for (;;) ballast.push_back(empty({elements}, {.device = gpu}));
        }(),
        Error);
    auto batches = data::prefetch(range, {.device = gpu, .ahead = 2});
    auto it = batches.begin();
    CHECK_THROWS_WITH(*it, Contains("out of memory on cuda"));
    ballast.pop_back();
    CHECK((*it).slice(0, 0, 1).item<int>() == 0);
    set_memory_limit(gpu, 0);
    ++it;
    CHECK((*it).slice(0, 0, 1).item<int>() == 1);
}

TEST_CASE("prefetch: batches are inputs of a captured step", "[cuda][data]") {
    if (test::no_device()) return;
    struct Training {
        Tensor w = full({3, 2}, 0.01, {.device = gpu}).set_requires_grad();
        optim::SGD optimizer{{w}, {.lr = 1e-5}};
        Tensors operator()(const Tensors& in) {
            const Tensor loss = cross_entropy(matmul(in[0], w), in[1] - in[1]);
            loss.backward();
            optimizer.step();
            optimizer.zero_grad();
            return {loss};
        }
    };
    Training eager, trained;
    cuda::CapturedStep step([&](const Tensors& in) { return trained(in); }, {.warmup = 2, .device = gpu});
    data::DataLoader plain = loader_of(42, 0), prefetching = loader_of(42, 2);
    for (int e = 0; e < 2; ++e) {
        std::vector<double> expected, seen;
        for (const auto& [x, y] : plain) expected.push_back(eager({x, y})[0].item<double>());
        for (const auto& [x, y] : prefetching) seen.push_back(step({x, y})[0].item<double>());
        CHECK(seen == expected);
    }
    CHECK(step.statistics().replays > 10);
    CHECK(eager.w.to_vector<float>() == trained.w.to_vector<float>());
}
