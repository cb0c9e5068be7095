// Checkpoints: exact resumption, and files that are whole after a kill at any moment.
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <cstring>

#include "mezzo/mezzo.h"
#include "tests/support/folder.h"
#include "tests/support/support.h"

using namespace mezzo;
using Catch::Matchers::Contains;
using test::Folder;

namespace {

// A training run in which every part of the state matters for the next step: dropout, moments, a scale that
// grows and falls.
struct Run {
    explicit Run(Device device) : device_(device) { net.to(device); }

    void step(int i) {
        const Tensor x = full({4, 8}, 0.1 * (i % 5) - 0.2, {.device = device_});
        // Every fifth step overflows.
        const double weight = i % 5 == 4 ? 1e30 : 1;
        Tensor loss;
        {
            amp::Autocast scope({.device = device_.type(), .dtype = float16});
            loss = mean(square(net(x))) * weight;
        }
        optimizer.zero_grad();
        scaler.scale(loss).backward();
        scaler.step(optimizer);
        scaler.update();
    }
    io::Checkpoint checkpoint(int done) {
        return {.model = net.state_dict(),
                .optimizer = optimizer.state_dict(),
                .scaler = scaler.state_dict(),
                .extra = {{"step", scalar(done, {.dtype = int64})}}};
    }
    nn::Sequential net{nn::Linear(8, 16), nn::Dropout(0.5), nn::Linear(16, 2)};
    optim::AdamW optimizer{net.parameters(), {.lr = 0.01}};
    amp::GradScaler scaler{{.init_scale = 256, .growth_interval = 2}};

private:
    Device device_;
};

bool equal_bits(const StateDict& a, const StateDict& b) {
    if (a.size() != b.size()) return false;
    for (const auto& [name, value] : a) {
        const StateDict found = io::without_prefix(b, name);
        const auto at =
            std::find_if(found.begin(), found.end(), [](const auto& e) { return e.first.empty(); });
        if (at == found.end() || at->second.dtype() != value.dtype() ||
            !(at->second.shape() == value.shape()))
            return false;
        const std::vector<double> x = test::doubles(value), y = test::doubles(at->second);
        if (std::memcmp(x.data(), y.data(), x.size() * sizeof(double)) != 0) return false;
    }
    return true;
}

}  // namespace

TEST_CASE("checkpoint: a resumed run is the uninterrupted one, bit for bit", "[io]") {
    const Folder folder;
    for (const Device device : test::devices()) {
        manual_seed(11);
        Run whole(device);
        for (int i = 0; i < 7; ++i) whole.step(i);
        io::save_checkpoint(folder.file("run"), whole.checkpoint(7));
        for (int i = 7; i < 16; ++i) whole.step(i);
        const RandomState last = random_state();

        manual_seed(99);
        Run resumed(device);
        const io::Checkpoint saved = io::load_checkpoint(folder.file("run"));
        resumed.net.load_state_dict(saved.model);
        resumed.optimizer.load_state_dict(saved.optimizer);
        resumed.scaler.load_state_dict(saved.scaler);
        set_random_state(saved.random);
        REQUIRE(saved.extra.size() == 1);
        for (int i = saved.extra[0].second.item<int>(); i < 16; ++i) resumed.step(i);

        CHECK(equal_bits(whole.net.state_dict(), resumed.net.state_dict()));
        CHECK(equal_bits(whole.optimizer.state_dict(), resumed.optimizer.state_dict()));
        CHECK(equal_bits(whole.scaler.state_dict(), resumed.scaler.state_dict()));
        CHECK(random_state().seed == last.seed);
        CHECK(random_state().offset == last.offset);
        CHECK(whole.optimizer.skipped_steps() > 0);
    }
}

TEST_CASE("checkpoint: every part comes back as it was", "[io]") {
    const Folder folder;
    const RandomState random{.seed = ~std::uint64_t(0), .offset = std::uint64_t(1) << 63};
    const io::Checkpoint checkpoint{
        .model = {{"w", full({2}, 1.0 / 3)}},
        .optimizer = {{"model.w", full({1}, 2, {.dtype = float64})}},
        .scaler = {},
        .extra = {{"", full({}, 3, {.dtype = int64})}, {"random", full({1}, 4)}},
        .random = random,
    };
    io::save_checkpoint(folder.file("file"), checkpoint);
    const io::Checkpoint read = io::load_checkpoint(folder.file("file"));
    CHECK(equal_bits(read.model, checkpoint.model));
    CHECK(equal_bits(read.optimizer, checkpoint.optimizer));
    CHECK(equal_bits(read.extra, checkpoint.extra));
    CHECK(read.scaler.empty());
    CHECK(read.random.seed == random.seed);
    CHECK(read.random.offset == random.offset);
    const io::SafeTensors file(folder.file("file"));
    CHECK(file.contains("optimizer.model.w"));
    CHECK(file.metadata() == io::Metadata{{"format", "pt"}, {"mezzo.checkpoint", "1"}});

    manual_seed(5);
    CHECK(io::Checkpoint().random.seed == 5);
}

TEST_CASE("checkpoint: prefixes", "[io]") {
    const StateDict state{{"a.x", ones({1})}, {"b.x", zeros({2})}, {"a.", ones({3})}};
    const StateDict a = io::without_prefix(state, "a.");
    REQUIRE(a.size() == 2);
    CHECK(a[0].first == "x");
    CHECK(a[1].first.empty());
    CHECK(io::with_prefix(a, "c.")[0].first == "c.x");
    CHECK(io::without_prefix(state, "c.").empty());
}

TEST_CASE("checkpoint: other files are refused", "[io]") {
    const Folder folder;
    const std::string path = folder.file("file");
    const Tensor random = zeros({2}, {.dtype = int64});
    io::save_safetensors(path, {{"random", random}});
    CHECK_THROWS_WITH(io::load_checkpoint(path),
                      Contains("file: no checkpoint: its metadata lack mezzo.checkpoint"));
    const auto save = [&](const StateDict& state, const char* version = "1") {
        io::save_safetensors(path, state, {{"mezzo.checkpoint", version}});
    };
    save({{"random", random}}, "2");
    CHECK_THROWS_WITH(io::load_checkpoint(path),
                      Contains("file: format version 2; this mezzo reads version 1"));
    save({{"model.w", ones({1})}});
    CHECK_THROWS_WITH(io::load_checkpoint(path), Contains("no tensor \"random\""));
    save({{"random", zeros({3}, {.dtype = int64})}});
    CHECK_THROWS_WITH(io::load_checkpoint(path), Contains("random is int64 [3], not int64 [2]"));
    save({{"random", zeros({2})}});
    CHECK_THROWS_WITH(io::load_checkpoint(path), Contains("random is float32 [2]"));
    save({{"random", random}, {"weights", ones({1})}});
    CHECK_THROWS_WITH(io::load_checkpoint(path), Contains("2 entries, 1 are those of a checkpoint"));
    save({{"random", random}});
    CHECK_NOTHROW(io::load_checkpoint(path));
}

TEST_CASE("checkpoint: whole after a kill at any moment", "[io]") {
    const Folder folder;
    const std::string path = folder.file("run");
    constexpr std::int64_t size = 20000;
    const Tensor first = zeros({size}, {.dtype = int64}), second = zeros({size}, {.dtype = int64});
    // The child only copies memory: the thread pool belongs to the parent.
    const auto save = [&](std::int64_t number) {
        std::fill_n(first.mutable_data<std::int64_t>(), size, number);
        std::fill_n(second.mutable_data<std::int64_t>(), size, number);
        io::save_checkpoint(path, {.model = {{"first", first}}, .extra = {{"second", second}}});
    };
    save(0);
    std::int64_t reached = 0;
    int in_the_middle = 0;
    // The kills come later and later, until some came after a finished save and some in the middle of one: a
    // disk may take long for one file.
    constexpr int rounds = 40, longest = 20;
    for (int round = 0; round < rounds || ((reached == 0 || in_the_middle == 0) && round < longest * rounds);
         ++round) {
        const pid_t child = fork();
        REQUIRE(child >= 0);
        if (child == 0) {
            try {
                for (std::int64_t number = reached + 1;; ++number) save(number);
            } catch (...) {
            }
            _exit(1);
        }
        usleep(useconds_t((500 + 997 * round % 20000) * (1 + round / rounds)));
        CHECK(kill(child, SIGKILL) == 0);
        int status = 0;
        REQUIRE(waitpid(child, &status, 0) == child);
        CHECK(WIFSIGNALED(status));
        in_the_middle += std::filesystem::exists(path + ".mezzo-partial");
        const io::Checkpoint read = io::load_checkpoint(path);
        REQUIRE(read.model.size() == 1);
        const std::int64_t number = read.model[0].second.data<std::int64_t>()[0];
        CHECK(number >= reached);
        CHECK(read.model[0].second.to_vector<std::int64_t>() == std::vector<std::int64_t>(size, number));
        CHECK(read.extra[0].second.to_vector<std::int64_t>() == std::vector<std::int64_t>(size, number));
        reached = number;
    }
    CHECK(reached > 0);
    CHECK(in_the_middle > 0);
    save(reached + 1);
    CHECK(folder.listing() == "run ");
}

TEST_CASE("checkpoint: two writers of one path take turns", "[io]") {
    const Folder folder;
    const std::string path = folder.file("run");
    const Tensor value = zeros({5000}, {.dtype = int64});
    std::vector<pid_t> children;
    for (std::int64_t id = 1; id <= 3; ++id) {
        children.push_back(fork());
        REQUIRE(children.back() >= 0);
        if (children.back() != 0) continue;
        int code = 0;
        try {
            std::fill_n(value.mutable_data<std::int64_t>(), 5000, id);
            for (int i = 0; i < 20; ++i) io::save_checkpoint(path, {.model = {{"value", value}}});
        } catch (...) {
            code = 1;
        }
        _exit(code);
    }
    for (const pid_t child : children) {
        int status = -1;
        REQUIRE(waitpid(child, &status, 0) == child);
        CHECK(WIFEXITED(status));
        CHECK(WEXITSTATUS(status) == 0);
    }
    const Tensor read = io::load_checkpoint(path).model.at(0).second;
    CHECK(read.to_vector<std::int64_t>() == std::vector<std::int64_t>(5000, read.data<std::int64_t>()[0]));
    CHECK(folder.listing() == "run ");
}

TEST_CASE("checkpoint: position and random states of all ranks", "[io]") {
    const Folder folder;
    const std::string path = folder.file("ranks");
    const auto equal = [](const RandomState& a, const RandomState& b) {
        return a.seed == b.seed && a.offset == b.offset;
    };
    const std::vector<RandomState> states{{~std::uint64_t{0}, 5}, {0, std::uint64_t{1} << 63}, {1, 900}};
    io::save_checkpoint(path, {.extra = {{"step", scalar(3, {.dtype = int64})}},
                               .random = states[0],
                               .position = {.epoch = 7, .samples = 123},
                               .random_states = states});
    const io::Checkpoint saved = io::load_checkpoint(path);
    CHECK(saved.position == data::LoaderPosition{7, 123});
    REQUIRE(saved.extra.size() == 1);  // what is mezzo's own is not among what the user has put there
    CHECK(saved.extra[0].first == "step");
    CHECK(equal(saved.random, states[0]));
    for (int rank = 0; rank < 3; ++rank) CHECK(equal(saved.random_of({rank, 3}), states[std::size_t(rank)]));
    // Streams of other numbers of ranks: keys of their own, beyond all that has been drawn.
    for (const int size : {1, 2, 4})
        for (int rank = 0; rank < size; ++rank)
            CHECK(equal(saved.random_of({rank, size}),
                        {states[0].seed + std::uint64_t(rank), std::uint64_t{1} << 63}));
    CHECK_THROWS_WITH(saved.random_of({2, 2}), Contains("Shard: rank 2 of 2"));

    io::save_checkpoint(path, {.random = {4, 5}});
    const io::Checkpoint alone = io::load_checkpoint(path);
    CHECK(alone.position == data::LoaderPosition{});
    CHECK(alone.random_states.empty());
    CHECK(equal(alone.random_of({0, 1}), {4, 5}));
    CHECK(equal(alone.random_of({1, 2}), {5, 5}));
    CHECK(io::SafeTensors(path).infos().size() == 1);  // as it was before there were ranks
}

TEST_CASE("checkpoint: entries of mezzo's own that are not what they must be", "[io]") {
    const Folder folder;
    const std::string path = folder.file("ranks");
    CHECK_THROWS_WITH(io::save_checkpoint(path, {.extra = {{"mezzo.step", scalar(3)}}}),
                      Contains("names that begin with \"mezzo.\" are mezzo's"));
    const auto reading = [&](const std::string& name, const Tensor& value) {
        io::save_safetensors(path, {{"random", zeros({2}, {.dtype = int64})}, {name, value}},
                             {{"mezzo.checkpoint", "1"}});
        static_cast<void>(io::load_checkpoint(path));
    };
    CHECK_THROWS_WITH(reading("extra.mezzo.position", arange(3)), Contains("int64 [3], not int64 [2]"));
    CHECK_THROWS_WITH(reading("extra.mezzo.position", arange(2) - 1), Contains("is negative"));
    CHECK_THROWS_WITH(reading("extra.mezzo.random_states", arange(2)), Contains("not int64 [ranks, 2]"));
    CHECK_THROWS_WITH(reading("extra.mezzo.random_states", zeros({0, 2}, {.dtype = int64})),
                      Contains("not int64 [ranks, 2]"));
    CHECK_THROWS_WITH(reading("extra.mezzo.random_states", zeros({2, 2})), Contains("is float32 [2, 2]"));
}
